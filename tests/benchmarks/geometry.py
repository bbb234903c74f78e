"""The geometry of 10,000 sentences' tokens, beside encoding them alone.

OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/geometry.py

all-MiniLM-L6-v2, float32, on sentences of four sets of ../shared/data. Encoding is the embedder alone, with
its model loaded; the geometry is a whole recipe, run from reading the data to the report's figures. Both take
a quarter of the sentences in turn, four times.

CPU seconds, one thread of a shared 2-core EPYC (AVX-512): encoding 37.1, geometry 37.7, ratio 1.02. Chunks of
equal length save the padding, which pays for the singular values (0.06 ms for 20 tokens of 384 numbers).
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emberge import load_plugins, parse_recipe, run_recipe
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder

from tests.support.result_folders import folders

SENTENCES, ROUNDS = 10_000, 4
SETS = ("stsb_en", "snli", "banking77", "clinc150")


def _sentences(data: Path) -> list[str]:
    """The first texts of sets of single sentences, each once, in an order that mixes the sets."""
    found: list[dict[str, None]] = []
    for name in SETS:
        with gzip.open(data / "train" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        found.append(dict.fromkeys(text for row in rows for text in (row["query"], *row["pos"])))
    mixed = dict.fromkeys(text for some in zip(*found, strict=False) for text in some)
    assert len(mixed) >= SENTENCES
    return [*mixed][:SENTENCES]


def _write(texts: list[str], path: Path) -> None:
    pairs = zip(texts[0::2], texts[1::2], strict=True)
    path.write_text("\n".join(json.dumps({"anchor": a, "positive": b}) for a, b in pairs))


def _seconds(work: Callable[[], object]) -> torch.Tensor:
    """CPU and wall seconds."""
    start = time.process_time(), time.perf_counter()
    work()
    return torch.tensor([time.process_time() - start[0], time.perf_counter() - start[1]])


@pytest.mark.benchmark
def test_geometry_beside_encoding_alone(minilm: Path, shared_data: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    texts = _sentences(shared_data)
    plugins = load_plugins(block=())
    embedder = TextEmbedder(TextEncoder().load(minilm, device="cpu", dtype="float32"))
    encoding, geometry = torch.zeros(2), torch.zeros(2)

    def run(number: int, part: list[str]) -> None:
        _write(part, tmp_path / f"{number}.jsonl")
        data = f"[{{path: ./{number}.jsonl, task: retrieval, symmetric: true}}]"
        text = f"steps: {{geo: {{geometry: {{models: ['{minilm}'], data: {data}}}}}}}"
        recipe = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
        made = folders(run_recipe(recipe, tmp_path / f"out-{number}", plugins, quiet=True))
        found = json.loads((made["geo"] / "geometry.json").read_text())["models"][0]["sets"]
        assert found[f"{number}"]["texts"] == len(part)

    try:
        embedder.embed(texts[:100])  # what is imported and set up once counts for neither
        run(ROUNDS, texts[:100])
        for number in range(ROUNDS):
            part = texts[number::ROUNDS]
            encoding += _seconds(lambda: embedder.embed(part))  # noqa: B023
            geometry += _seconds(lambda: run(number, part))  # noqa: B023
    finally:
        torch.set_num_threads(threads)
    print(f"\n{len(texts):,} sentences, seconds:")
    for place, kind in enumerate(("CPU", "wall")):
        own, other = float(geometry[place]), float(encoding[place])
        print(f"  {kind}: encoding {other:.1f}, geometry {own:.1f}: ratio {own / other:.2f}")
    assert geometry[0] < 2 * encoding[0]
