"""Several models on several mteb tasks, beside mteb with sentence-transformers' encode.

    OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/evaluation.py

all-MiniLM-L6-v2 and noisy siblings with its tokenizer, float32, on pieces of sets of ../shared/data: finding
passages (squad, and its dev half, which shares the passages), similarity (stsb_en), and classification by
mteb's protocol (hwu64). Each model is loaded and each task built anew on either side; both sides run in turn,
and CPU time is compared task by task. Scores must be the same to 1e-6.

Three models, one thread of a shared 2-core EPYC (AVX-512), CPU seconds, ours and the peer's:

    squad       9.9   16.7   1.69   passages: packed weights, chunks that fit the cache, no padding
    stsb_en     2.8    4.6   1.65
    hwu64       5.1    8.7   1.70   both sides fit the same classifiers, texts of ten fits embedded once
    squad-dev   0.9   15.9   18.2   the passages are known from squad
    all        18.6   45.9   2.46

So it is more than twice as fast where tasks share texts, and 1.7 times where they share few. Most of the rest
is matrix products, at about 100 GFLOP/s (measured alone), near what the core can do in float32: without equal
texts only fewer or less precise products would gain more. Tokenising costs less than 1 % of either side.
"""

from __future__ import annotations

import gzip
import json
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from emberge import DataRef
from emberge_mteb import EvalEntry, LocalSet, Mteb, local_task
from emberge_mteb.local_sets import local_sets

from tests.support.bench import BACKBONE, Bench, model_at, write_rows

MODELS = 3
DOCUMENTS, PAIRS, LABELS, TEXTS = 60, 150, 10, 100


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _cut_sets(data: Path, folder: Path) -> list[EvalEntry]:
    """Write a piece of each set, and a catalogue of them."""
    source, target = data / "eval", folder / "eval"
    corpus = _rows(source / "squad" / "corpus.jsonl.gz")[:DOCUMENTS]
    write_rows(target / "squad" / "corpus.jsonl.gz", corpus)
    kept = {row["_id"] for row in corpus}
    shutil.copy(source / "squad" / "queries.jsonl.gz", target / "squad")
    for name in ("qrels.tsv", "qrels_dev.tsv"):
        head, *lines = (source / "squad" / name).read_text().splitlines()
        lines = [line for line in lines if line.split("\t")[1] in kept]
        (target / "squad" / name).write_text("\n".join([head, *lines, ""]))
    write_rows(
        target / "stsb_en" / "test.jsonl.gz", _rows(source / "stsb_en" / "test.jsonl.gz")[:PAIRS]
    )
    fits = _rows(source / "hwu64" / "train.jsonl.gz")
    labels = set(sorted({row["label"] for row in fits})[:LABELS])
    for half, most in (("train", None), ("test", TEXTS)):
        rows = _rows(source / "hwu64" / f"{half}.jsonl.gz")
        rows = [row for row in rows if row["label"] in labels][:most]
        write_rows(target / "hwu64" / f"{half}.jsonl.gz", rows)
    names = ("squad", "stsb_en", "hwu64")
    listed = yaml.safe_load((data / "datasets.yaml").read_text())["eval"]
    path = folder / "datasets.yaml"
    path.write_text(
        yaml.safe_dump({"format": 1, "eval": [one for one in listed if one["name"] in names]})
    )
    reference = DataRef(str(path))
    return [
        EvalEntry(path=reference, only=names),
        EvalEntry(path=reference, only=("squad",), split="dev"),
    ]


def _siblings(minilm: Path, folder: Path) -> Iterator[Path]:
    """The model, and others whose weights differ from it a little."""
    from safetensors.torch import load_file, save_file

    yield minilm
    generator = torch.Generator().manual_seed(0)
    for number in range(1, MODELS):
        sibling = folder / f"sibling{number}"
        shutil.copytree(minilm, sibling)
        for path in sibling.rglob("*.safetensors"):
            moved = {
                name: w + 0.02 * w.std() * torch.randn(w.shape, generator=generator)
                if w.is_floating_point() and w.ndim == 2
                else w
                for name, w in load_file(path).items()
            }
            save_file(moved, path, metadata={"format": "pt"})
        yield sibling


def _peer(folder: Path, sets: list[LocalSet], bench: Bench) -> Iterator[float]:
    """Scores of mteb with a SentenceTransformer, at the defaults of both."""
    import mteb
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    for one in sets:
        task = local_task(one.set, one.load(bench.readers), split=one.split, revision="0")
        with warnings.catch_warnings():
            # What mteb and its parts call deprecated, and fits that its protocol ends early.
            warnings.simplefilter("ignore")
            results = mteb.evaluate(
                model, task, cache=None, show_progress_bar=False, co2_tracker=False
            )
        yield float(results.task_results[0].get_score())


def _ours(folder: Path, evaluator: Mteb, bench: Bench) -> Iterator[float]:
    for score in evaluator.evaluate(model_at(folder), evaluator.plan(bench), bench):
        yield score.score


def _timed(scores: Iterator[float]) -> list[tuple[float, float]]:
    """(score, CPU seconds until it came) of every task."""
    found = []
    start = time.process_time()
    for score in scores:
        found.append((score, time.process_time() - start))
        start = time.process_time()
    return found


@pytest.mark.benchmark
def test_models_on_tasks_beside_mteb_with_sentence_transformers(
    minilm: Path, shared_data: Path, tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    bench = Bench(tmp_path / "run")
    entries = _cut_sets(shared_data, tmp_path)
    evaluator = Mteb(data=tuple(entries), backbone=BACKBONE)
    sets = list(local_sets(entries, bench.data, bench.readers))
    names = [task.name for task in evaluator.plan(bench)]
    seconds = {name: [0.0, 0.0] for name in names}
    try:
        models = list(_siblings(minilm, tmp_path))
        next(_peer(minilm, sets[1:2], bench))  # what is imported and set up once counts for none
        next(_ours(minilm, evaluator, Bench(tmp_path / "warm")))
        for folder in models:
            theirs = _timed(_peer(folder, sets, bench))
            mine = _timed(_ours(folder, evaluator, bench))
            for name, own, other in zip(names, mine, theirs, strict=True):
                assert own[0] == pytest.approx(other[0], abs=1e-6), name
                seconds[name][0] += own[1]
                seconds[name][1] += other[1]
    finally:
        torch.set_num_threads(threads)
    totals = [sum(values) for values in zip(*seconds.values(), strict=True)]
    print(f"\nCPU seconds of {len(models)} models:")
    for name, (own, other) in {**seconds, "all": totals}.items():
        print(f"  {name}: ours {own:.1f}, peer {other:.1f}: ratio {other / own:.2f}")
