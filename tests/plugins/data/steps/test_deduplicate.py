"""Of rows that repeat one another the first stays, by the order of preference."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, DataEntry, DataRef
from emberge.data import load_datasets
from emberge_data.json_lines import JsonLines
from emberge_data.steps.deduplicate_step import Deduplicate
from emberge_data.steps.text_similarity import compute_jaccard, list_shingles, normalise

from tests.plugins.data.steps.steps import written
from tests.support.bench import Bench

Rows = Sequence[dict[str, Any]]


def run(tmp_path: Path, sets: dict[str, Rows], **options: Any) -> dict[str, list[str]]:
    """The anchors that are left of each set."""
    entries = tuple(
        DataEntry(path=DataRef(str(written(tmp_path / f"{name}.jsonl", rows))))
        for name, rows in sets.items()
    )
    bench = Bench(tmp_path / "run")
    Deduplicate(data=entries, **options).run(bench)
    left = load_datasets(
        [DataEntry(path=DataRef(str(bench.folder)))],
        readers=[JsonLines()],
        resolve=lambda ref: Path(ref.text),
    )
    return {one.info.name: [one[row].anchor for row in range(len(one))] for one in left}


def pair(anchor: str, positive: str, *negatives: str) -> dict[str, Any]:
    return {"query": anchor, "pos": [positive], "neg": list(negatives)}


LABELLED = [
    *({"text": text, "label": "x"} for text in ("one", "two", "One!")),
    *({"text": text, "label": "y"} for text in ("one", "three")),
    *({"text": text, "label": "z"} for text in ("four", "Four.")),
]
SCORED = [
    {"sentence1": "one", "sentence2": "two", "score": 0.4},
    {"sentence1": "two", "sentence2": "one", "score": 0.4},
    {"sentence1": "two", "sentence2": "three", "score": 0.1},
]


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        (
            [pair("What is it?", "A thing."), pair("what is IT", "a  thing"), pair("What?", "It.")],
            ["What is it?", "What?"],
        ),
        (
            [pair("One?", "passage"), pair("Two?", "passage"), pair("One?", "other")],
            ["One?", "Two?", "One?"],
        ),
        ([pair("q", "p", "n1"), pair("q", "p", "n2"), pair("r", "s", "n1")], ["q", "r"]),
        (SCORED, ["one", "two"]),
        (LABELLED, ["one", "two", "one", "three"]),
    ],
    ids=["case", "one side", "negatives", "either order", "labels, none of which has one row"],
)
def test_rows_that_say_the_same_are_one(tmp_path: Path, rows: Rows, left: list[str]) -> None:
    assert run(tmp_path, {"a": rows}) == {"a": left}


def test_a_row_of_two_sets_stays_in_the_first(tmp_path: Path) -> None:
    sets = {"a": [pair("q", "p"), pair("x", "y")], "b": [pair("Q!", "p"), pair("u", "v")]}
    assert run(tmp_path, sets) == {"a": ["q", "x"], "b": ["u"]}


def test_no_two_rows_that_stay_are_near_and_the_others_are_near_one(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in ("lt", "rm", "nd", "sk")]
    rows: list[dict[str, Any]] = []
    for _ in range(300):
        if rows and rng.random() < 0.5:
            anchor = rng.choice(rows)["query"].split()
            anchor[rng.randrange(len(anchor))] = rng.choice(words)
        else:
            anchor = rng.choices(words, k=14)
        rows.append(pair(" ".join(anchor), "the same passage for all of them"))
    (left,) = run(tmp_path, {"a": rows}, jaccard=0.7).values()
    sets = {row["query"]: list_shingles(normalise(row["query"]), 4) for row in rows}
    gone = sets.keys() - set(left)
    assert gone
    assert all(any(compute_jaccard(sets[a], sets[b]) >= 0.7 for b in sets if a != b) for a in gone)
    assert not any(compute_jaccard(sets[a], sets[b]) >= 0.7 for a in left for b in left if a != b)


def test_rows_exactly_at_the_threshold_are_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge_data.steps.deduplicate_step.SHINGLE", 1)
    rows = {"a": [pair("abcd", "0"), pair("abce", "0")]}
    assert run(tmp_path / "at", rows, jaccard=0.6) == {"a": ["abcd"]}
    assert run(tmp_path / "above", rows, jaccard=0.6 + 1e-9) == {"a": ["abcd", "abce"]}


def test_counts_and_examples_name_the_row_that_stays(tmp_path: Path) -> None:
    rows = [pair("q", "p"), pair("Q", "p")]
    path = written(tmp_path / "a.jsonl", rows)
    bench = Bench(tmp_path)
    artifact = Deduplicate(data=(DataEntry(path=DataRef(str(path))),)).run(bench)
    assert isinstance(artifact, Artifact)
    assert artifact.size == 1
    (example,) = json.loads((bench.folder / "changes.json").read_text())["a"]["examples"]
    assert example["row"] == 2
    assert example["related_text"] == "row 1: q"
