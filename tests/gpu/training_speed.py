"""Trainings on the device by precision: tokens a second, memory, loss."""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.bench_run import BenchRun
from tests.gpu.bench_table import Row

PART = "train"
LONGEST = 256
RECIPE = """\
seed: 1
steps:
  tuned:
    train:
      model: {model}
      data: [{{path: {data}, task: retrieval}}]
      sampler: {{batch_shuffle: {{batch_size: {batch}}}}}
      loss: {{infonce: {{temperature: 0.05}}}}
      max_steps: {steps}
      max_length: {longest}
      precision: {precision}
      dropout: false
      learning_rate: 2.0e-5
      logging_steps: 1
"""


# The first is what others are held to.
PRECISIONS = ("float32", "bfloat16")
# How far a loss may be from that of float32: bfloat16 keeps eight bits of each number.
ABSOLUTE, RELATIVE = 0.05, 0.1


@dataclass(frozen=True)
class Sizes:
    """How much is trained: layers and width of the models, rows of a batch, steps."""

    layers: int
    width: int
    batch: int
    steps: int


FULL, SMALL = Sizes(12, 768, 128, 40), Sizes(2, 32, 8, 4)


def run_trainings(run: BenchRun) -> Iterator[Row]:
    """Yield a row for each architecture and precision."""
    place = run.folder / "trainings"
    shutil.rmtree(place, ignore_errors=True)
    sizes = SMALL if run.small else FULL
    data = _write_pairs(place / "pairs.jsonl", sizes.batch * sizes.steps)
    for architecture in ("bert", "qwen3"):
        model = _build(place / architecture, architecture, sizes)
        reference: list[float] = []
        for precision in PRECISIONS:
            row, losses = _train(run, architecture, precision, model, data, sizes, reference)
            reference = reference or losses
            yield row


def _train(
    run: BenchRun,
    architecture: str,
    precision: str,
    model: Path,
    data: Path,
    sizes: Sizes,
    reference: list[float],
) -> tuple[Row, list[float]]:
    name = f"{architecture}, {precision}"
    place = model.with_name(f"{model.name}-{precision}")
    given = {"batch": sizes.batch, "steps": sizes.steps, "longest": LONGEST}
    text = RECIPE.format(model=model, data=data, precision=precision, **given)
    recipe = place.with_suffix(".yaml")
    recipe.write_text(text, encoding="utf-8")
    words = (str(recipe), "--out", str(place), "--devices", run.device, "--quiet")
    done = run.emberge(f"train-{place.name}", "run", *words)
    if done.failed:
        return Row(PART, name, "failed", done.reason), []
    logged = _logged(place / "tuned" / "metrics.jsonl")
    shutil.rmtree(place)
    losses = logged["loss"]
    fault = _fault(losses, reference)
    note = f"{_speed(logged['tokens_per_second'])}, {_memory(logged)}loss {losses[-1]:.4f}"
    return Row(PART, name, "failed" if fault else "passed", f"{fault}{note}"), losses


def _fault(losses: list[float], reference: list[float]) -> str:
    """Return what is wrong with the losses beside those of float32, if anything is."""
    if not all(map(math.isfinite, losses)):
        return "a loss that is not finite; "
    for step, (loss, wanted) in enumerate(zip(losses, reference, strict=False), 1):
        if abs(loss - wanted) > ABSOLUTE + RELATIVE * abs(wanted):
            return f"loss {loss:.4f} at step {step}, in float32 {wanted:.4f}; "
    return ""


def _logged(path: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["name"], []).append(row["value"])
    return found


def _speed(values: list[float]) -> str:
    """Return the median of the second half, when kernels are chosen and caches are warm."""
    return f"{statistics.median(values[len(values) // 2 :]):,.0f} tokens/s"


def _memory(logged: Mapping[str, list[float]]) -> str:
    values = logged.get("gpu_memory_gib")
    return f"{max(values):.2f} GiB on the GPU, " if values else ""


# ── models and data ─────────────────────────────────────────────────────────────────────────────


def _build(folder: Path, architecture: str, sizes: Sizes) -> Path:
    """Write a random model that reads up to `LONGEST` tokens."""
    import torch
    from transformers import AutoModel, BertConfig, Qwen3Config

    from tests.support import tiny

    folder.mkdir(parents=True)
    heads = max(2, sizes.width // 64)
    common: dict[str, Any] = {
        "vocab_size": tiny.write_tokenizer(folder),
        "hidden_size": sizes.width,
        "intermediate_size": 4 * sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2 * LONGEST,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if architecture == "bert":
        config: Any = BertConfig(**common)
    else:
        config = Qwen3Config(**common, num_key_value_heads=heads // 2, head_dim=64, eos_token_id=3)
    AutoModel.from_config(config).save_pretrained(folder)
    pooling = "mean" if architecture == "bert" else "last"
    tiny.write_modules(folder, sizes.width, pooling=pooling, max_length=LONGEST)
    return folder


def _write_pairs(path: Path, rows: int) -> Path:
    """Write pairs of texts from five words to about as many as the model reads."""
    from tests.support import tiny

    path.parent.mkdir(parents=True)
    drawn = random.Random(0)

    def text() -> str:
        count = min(LONGEST - 8, 5 + int(drawn.lognormvariate(3.6, 0.8)))
        return " ".join(drawn.choices(tiny.WORDS, k=count))

    lines = [json.dumps({"anchor": text(), "positive": text()}) for _ in range(rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path
