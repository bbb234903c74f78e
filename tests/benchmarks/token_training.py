"""Trainings with a loss over tokens beside transformers' Trainer: one model, optimizer and packed batches.

    OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/token_training.py

A Qwen3 of random weights with bidirectional attention, float32, without dropout, learns masked next tokens
of texts of 128 random words, packed into four rows of 512 tokens a step. The Trainer gets the very rows
that ours has computed, with labels, positions and block masks, for nothing. A step is forward, loss,
backward, clipping and AdamW; both trainings run in turn, and medians over their steps are compared, the
first step of each run left out. Losses of all steps must agree.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Example, PerDataset
from emberge.training import FitOptions
from emberge_encoder import TextEncoder
from emberge_train import MNTP, BatchShuffle
from torch import Tensor

from tests.support.fitting import run_fit
from tests.support.training_data import InMemory, dataset

ROUNDS, STEPS, ROWS, LENGTH, WORDS = 3, 5, 4, 512, 128
RATE, CLIP = 1e-3, 1.0
Times = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Recorded(TextEncoder):
    """An encoder of text that keeps the packed features that it is given."""

    features: list[Any] = field(default_factory=list, compare=False, repr=False)

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Any:
        encoder: Any = super().load(checkpoint, device=device, dtype=dtype, predicts=predicts)
        pack = encoder.pack

        def recorded(rows: Any) -> Any:
            self.features.append(pack(rows))
            return self.features[-1]

        encoder.pack = recorded
        return encoder


@dataclass(frozen=True, kw_only=True)
class RecordedLabels(MNTP):
    """Masked next tokens that keep the labels that they are given."""

    labels: list[Tensor] = field(default_factory=list, compare=False, repr=False)

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        self.labels.append(labels)
        return super().__call__(hidden, labels, head)


def _texts() -> InMemory:
    """As many texts as fill the rows of all steps."""
    words = np.random.default_rng(0).integers(10, 2000, (STEPS * ROWS * LENGTH // WORDS, WORDS))
    return dataset("read", "text", [Example(" ".join(f"w{w}" for w in text)) for text in words])


def _write(folder: Path, vocabulary: int) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    names = ["<pad>", "<mask>", "<unk>", *(f"w{i}" for i in range(3, vocabulary))]
    words = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        **{"pad_token": "<pad>", "mask_token": "<mask>", "unk_token": "<unk>"},
        model_max_length=LENGTH,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        **{"vocab_size": vocabulary, "hidden_size": 256, "intermediate_size": 768},
        **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"head_dim": 64, "max_position_embeddings": LENGTH, "tie_word_embeddings": True},
        pad_token_id=0,
    )
    config.is_causal = False
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


class _Clock:
    """CPU and wall seconds between ticks."""

    def __init__(self) -> None:
        self.ticks: list[tuple[float, float]] = []

    def tick(self) -> None:
        self.ticks.append((time.process_time(), time.perf_counter()))

    @property
    def times(self) -> Times:
        """Seconds of each step but the first."""
        return [
            (b[0] - a[0], b[1] - a[1]) for a, b in zip(self.ticks, self.ticks[1:], strict=False)
        ]


def _ours(folder: Path, root: Path, backbone: TextEncoder, loss: MNTP) -> tuple[list[float], Times]:
    clock = _Clock()

    def progress(done: float, total: float, unit: str = "", note: str = "") -> None:
        if unit == "steps":
            clock.tick()

    data = _texts()
    gc.collect()
    result = run_fit(
        backbone=backbone,
        checkpoint=folder,
        datasets=[data],
        sampler=(BatchShuffle(batch_size=PerDataset(default=len(data) // STEPS)),),
        losses=PerDataset(default=(loss,)),
        options=FitOptions(
            **{"max_steps": STEPS, "packing": LENGTH, "token_budget": 2 * ROWS * LENGTH},
            **{"learning_rate": RATE, "schedule": "constant", "warmup_ratio": 0.0},
            **{"weight_decay": 0.0, "max_grad_norm": CLIP, "dropout": False},
        ),
        seed=0,
        folder=root / "out",
        work=root / "work",
        progress=progress,
    )
    return [loss for _, loss in result.step_losses], clock.times


def _batches(features: list[Any], labels: list[Tensor]) -> list[Mapping[str, Tensor]]:
    """The rows of each step as a plain model takes them."""
    found = []
    for given, wanted in zip(features, labels, strict=True):
        documents = given["documents"]
        mask = documents[:, None, :, None] == documents[:, None, None, :]
        found.append(
            {
                "input_ids": given["input_ids"],
                "position_ids": given["position_ids"],
                "attention_mask": mask,
                "labels": wanted,
            }
        )
    return found


def _theirs(
    folder: Path, root: Path, batches: list[Mapping[str, Tensor]]
) -> tuple[list[float], Times]:
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    clock = _Clock()
    losses: list[float] = []

    class Listener(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    class InOrder(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            return batches[index]

    class Plain(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    arguments = TrainingArguments(
        output_dir=str(root),
        **{"per_device_train_batch_size": 1, "max_steps": STEPS, "use_cpu": True},
        **{"learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0.0},
        **{"max_grad_norm": CLIP, "optim": "adamw_torch", "logging_steps": 1},
        **{"save_strategy": "no", "report_to": [], "disable_tqdm": True},
    )
    trainer = Plain(
        model=model,
        args=arguments,
        train_dataset=InOrder(),
        data_collator=lambda rows: dict(rows[0]),
        callbacks=[Listener()],
    )
    gc.collect()
    trainer.train()
    return losses, clock.times


@pytest.mark.benchmark
@pytest.mark.parametrize("vocabulary", [8192, 50_000])
def test_a_step_beside_transformers_trainer(vocabulary: int, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        folder = _write(tmp_path / "model", vocabulary)
        backbone, loss = Recorded(pooling="mean"), RecordedLabels()
        expected, _ = _ours(folder, tmp_path / "recorded", backbone, loss)
        # The first features are of the probe that texts stay apart.
        batches = _batches(backbone.features[1:], loss.labels)
        mine: Times = []
        theirs: Times = []
        for number in range(ROUNDS):
            root = tmp_path / str(number)
            found, times = _ours(folder, root, TextEncoder(pooling="mean"), MNTP())
            assert found == expected
            mine += times
            found, times = _theirs(folder, root / "peer", batches)
            theirs += times
            assert found == pytest.approx(expected, rel=1e-4)
    finally:
        torch.set_num_threads(threads)
    rows = {
        name: [statistics.median(c) for c in zip(*some, strict=True)]
        for name, some in (("ours", mine), ("Trainer", theirs))
    }
    cpu, wall = (a / b for a, b in zip(rows["ours"], rows["Trainer"], strict=True))
    print(
        f"\n{vocabulary} tokens: "
        + json.dumps(rows)
        + f" ratio of CPU {cpu:.2f}, of wall {wall:.2f}"
    )
    assert cpu <= 1.0
