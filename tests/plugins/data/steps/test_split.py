"""The two parts of a split share no text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataError, DataRef, Example
from emberge.data import load_datasets
from emberge_data.json_lines import JsonLines
from emberge_data.steps.split_parts import choose_rows, group_rows
from emberge_data.steps.split_step import Split
from emberge_data.steps.text_similarity import normalise

from tests.plugins.data.steps.steps import written
from tests.support.bench import Bench
from tests.support.glance import Glance

Parts = tuple[dict[str, list[Example]], dict[str, list[Example]]]


def part(folder: Path, **options: Any) -> dict[str, list[Example]]:
    """The sets of a catalogue, as a training reads them."""
    sets = load_datasets(
        [DataEntry(path=DataRef(str(folder)), **options)],
        readers=[JsonLines()],
        resolve=lambda ref: Path(ref.text),
    )
    return {one.info.name: [one[row] for row in range(len(one))] for one in sets}


def split(tmp_path: Path, sets: dict[str, Sequence[dict[str, Any]]], **options: Any) -> Parts:
    """The training part and the development part."""
    entries = tuple(
        DataEntry(path=DataRef(str(written(tmp_path / f"{name}.jsonl", rows))))
        for name, rows in sets.items()
    )
    bench = Bench(tmp_path / "run", seed=options.pop("seed", 0))
    Split(data=entries, **options).run(bench)
    return part(bench.folder), part(bench.folder, split="dev")


def split_in_three(tmp_path: Path, given: Sequence[dict[str, Any]], **options: Any) -> Bench:
    path = written(tmp_path / "a.jsonl", given)
    bench = Bench(tmp_path / "run", seed=options.pop("seed", 0))
    Split(data=(DataEntry(path=DataRef(str(path))),), **options).run(bench)
    return bench


def pair(anchor: str, positive: str, *negatives: str) -> dict[str, Any]:
    return {"query": anchor, "pos": [positive], "neg": list(negatives)}


def questions(count: int, passages: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions on passages, several on each, with other passages as negatives."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        passage, *others = rng.sample(range(passages), 3)
        rows.append(pair(f"question {number}", *(f"Passage {n}." for n in (passage, *others))))
    return rows


def own(rows: Sequence[Example]) -> set[str]:
    return {normalise(text) for row in rows for text in (row.anchor, *row.positives)}


def every(rows: Sequence[Example]) -> set[str]:
    return own(rows) | {normalise(text) for row in rows for text in row.negatives}


def test_the_parts_share_no_anchor_and_no_positive_within_and_across_sets(tmp_path: Path) -> None:
    first, second = questions(200, 60), questions(100, 60, seed=1)
    second = [{**row, "query": f"another {row['query']}"} for row in second]
    train, dev = split(tmp_path, {"a": first, "b": second}, share=0.2)
    for name, rows in (("a", first), ("b", second)):
        assert len(train[name]) + len(dev[name]) == len(rows)
        assert 0.1 * len(rows) < len(dev[name]) <= 0.2 * len(rows)
    learned, asked = [*train["a"], *train["b"]], [*dev["a"], *dev["b"]]
    assert not own(learned) & every(asked)
    assert not own(asked) & every(learned)
    assert any(row.negatives for row in learned)
    # Rows are as they were but for negatives of the other part.
    given = {row["query"]: row for row in (*first, *second)}
    assert {row.anchor for row in (*learned, *asked)} == set(given)
    for here, there in ((learned, own(asked)), (asked, own(learned))):
        for row in here:
            negatives = given[row.anchor]["neg"]
            assert list(row.positives) == given[row.anchor]["pos"]
            assert list(row.negatives) == [n for n in negatives if normalise(n) not in there]


def test_a_label_is_in_both_parts_with_two_rows_or_more(tmp_path: Path) -> None:
    rows = [{"text": f"text {i} of {i % 4}", "label": str(i % 4)} for i in range(80)]
    train, dev = split(tmp_path, {"a": rows}, share=0.25)
    for one in (train, dev):
        labels = [row.label for row in one["a"]]
        assert set(labels) == set("0123")
        assert min(labels.count(label) for label in set(labels)) >= 2


def test_the_choice_depends_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    sets = {"a": questions(100, 40)}
    found = {
        name: {row.anchor for row in split(tmp_path / name, sets, seed=seed)[1]["a"]}
        for name, seed in (("one", 1), ("again", 1), ("two", 2))
    }
    assert found["one"] == found["again"] != found["two"]


def test_rows_that_all_hang_together_cannot_be_split(tmp_path: Path) -> None:
    chain = [pair(f"t{a}", f"t{b}") for a, b in pairwise(range(50))]
    with pytest.raises(DataError, match=r"the smallest has 49 of 49 rows"):
        split(tmp_path, {"a": chain})


def test_groups_that_are_too_large_are_passed_over() -> None:
    rows, things = np.array([0, 1, 2, 2, 3]), np.array([5, 1, 5, 0, 1])
    assert group_rows(5, rows, things).tolist() == [0, 1, 0, 1, 2], "by their first rows"
    groups = np.array([0, 0, 0, 1, 1, 2, 3])
    sets = np.zeros(7, dtype=np.int64)
    for seed in range(20):
        chosen = choose_rows(groups, sets, [2], seed)
        assert chosen.sum() == 2
        assert not chosen[:3].any()


def test_the_parts_that_will_be_made_are_announced(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [pair(f"q{n}", f"p{n}") for n in range(9)])
    entry = DataEntry(path=DataRef(str(path)))
    for options, parts in (({}, ("dev",)), ({"test": 0.1}, ("dev", "test"))):
        context = Glance()
        assert list(Split(data=(entry,), **options).check(context)) == []  # type: ignore[arg-type]
        (expected,) = context.expectations
        assert (expected.splits, expected.sets) == (parts, {"a": "retrieval"})


def test_more_rows_than_there_are_leave_none_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ask for fewer"):
        split(tmp_path, {"a": [pair("q", "p"), pair("r", "s")]}, rows=2)
    with pytest.raises(DataError, match="6 for development and 4 for test leave none"):
        split_in_three(tmp_path, questions(10, 10), rows=6, test=4)
    problems = {one.where: one.message for one in Split(data=(), share=0.1, rows=5).check(Glance())}
    assert "keep one" in problems["rows"]


# ── the test part ───────────────────────────────────────────────────────────────────────────────


def test_a_third_part_shares_no_text_with_the_others(tmp_path: Path) -> None:
    rows = questions(400, 150)
    bench = split_in_three(tmp_path, rows, share=0.1, test=60)
    parts = [part(bench.folder, split=name)["a"] for name in ("train", "dev", "test")]
    assert sum(map(len, parts)) == len(rows)
    assert 0 < len(parts[1]) <= 40
    assert 0 < len(parts[2]) <= 60
    for number, rows_of_part in enumerate(parts):
        for other, others in enumerate(parts):
            assert number == other or not own(rows_of_part) & every(others)


def test_the_development_part_is_the_same_with_a_test_part(tmp_path: Path) -> None:
    rows = questions(200, 60)
    without = split_in_three(tmp_path / "without", rows, share=0.1)
    beside = split_in_three(tmp_path / "with", rows, share=0.1, test=0.1)
    anchors = [{row.anchor for row in part(b.folder, split="dev")["a"]} for b in (without, beside)]
    assert anchors[0] == anchors[1]


# ── near copies ─────────────────────────────────────────────────────────────────────────────────


def test_near_copies_are_in_one_part(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    rng = random.Random(0)
    texts = ["".join(rng.choices(letters, k=60)) for _ in range(40)]
    rows = [
        pair(f"{text}{end}", f"answer {n} {end}") for n, text in enumerate(texts) for end in "xy"
    ]
    for options, is_apart in (({}, True), ({"jaccard": 0.8}, False)):
        bench = split_in_three(tmp_path / str(is_apart), rows, share=0.3, test=0.3, **options)
        stems = [
            {row.anchor[:-1] for row in part(bench.folder, split=name)["a"]}
            for name in ("train", "dev", "test")
        ]
        shared = stems[0] & stems[1] | stems[0] & stems[2] | stems[1] & stems[2]
        assert bool(shared) == is_apart
