"""Tiny sets to find weights on, in a catalogue with both halves of each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from tests.support.bench import sentence, write_labelled, write_pairs, write_rows

SETS = {"asked": "retrieval", "likeness": "sts", "topics": "clustering"}


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of each kind; do not write into it."""
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return folder


@pytest.fixture
def place(bert: Path, berts: list[Path], sets: Path, tmp_path: Path) -> Path:
    """A folder with a base, three models called a, b, c, and sets."""
    for name, folder in zip(("base", "a", "b", "c"), (bert, *berts), strict=True):
        (tmp_path / name).symlink_to(folder)
    (tmp_path / "sets").symlink_to(sets)
    return tmp_path


def write_sets(folder: Path, units: int = 60) -> None:
    """Write a catalogue whose sets have so many queries, pairs or texts in each half."""
    entries = []
    for name, kind in SETS.items():
        here = folder / name
        here.mkdir(parents=True)
        for seed, half in enumerate(("dev", "test")):
            if kind == "clustering":
                write_labelled(here / f"{half}.jsonl.gz", rows=units, seed=seed)
            elif kind != "retrieval":
                write_pairs(here / f"{half}.jsonl.gz", rows=units, seed=seed)
        if kind == "retrieval":
            _write_retrieval(here, units)
        entries.append({"name": name, "dir": name, "task": kind, "language": "en"})
    (folder / "datasets.yaml").write_text(yaml.safe_dump({"format": 1, "eval": entries}))


def _write_retrieval(folder: Path, queries: int) -> None:
    rng = random.Random(7)
    texts = [sentence(rng, 8) for _ in range(3 * queries)]
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    write_rows(folder / "corpus.jsonl.gz", rows)
    asked = [" ".join(texts[i].split()[:3]) + " " + sentence(rng, 3) for i in range(2 * queries)]
    write_rows(
        folder / "queries.jsonl.gz", [{"_id": f"q{i}", "text": t} for i, t in enumerate(asked)]
    )
    for start, name in ((0, "qrels.tsv"), (queries, "qrels_dev.tsv")):
        lines = ["query-id\tcorpus-id\tscore"]
        for i in range(start, start + queries):
            lines += [f"q{i}\td{i}\t2", f"q{i}\td{i + queries}\t1"]
        (folder / name).write_text("\n".join(lines) + "\n")
