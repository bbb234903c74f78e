"""The two parts of a split share no text, and no class where that is asked for."""

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
from emberge_data.steps.split_step import Split, choose_rows, group_rows
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


def test_rows_are_those_that_were_given_but_for_negatives_of_the_other_part(
    tmp_path: Path,
) -> None:
    rows = questions(100, 30)
    train, dev = split(tmp_path, {"a": rows}, rows=10)
    given = {row["query"]: row for row in rows}
    assert {row.anchor for row in (*train["a"], *dev["a"])} == set(given)
    for here, there in ((train["a"], own(dev["a"])), (dev["a"], own(train["a"]))):
        for row in here:
            negatives = given[row.anchor]["neg"]
            assert list(row.positives) == given[row.anchor]["pos"]
            assert list(row.negatives) == [n for n in negatives if normalise(n) not in there]


def test_by_labels_no_class_is_in_both_parts(tmp_path: Path) -> None:
    rows = [{"text": f"text {i} of {i % 20}", "label": str(i % 20)} for i in range(200)]
    train, dev = split(tmp_path, {"a": rows}, share=0.15, by="labels")
    kinds = [{row.label for row in one["a"]} for one in (train, dev)]
    assert (len(kinds[0]), len(kinds[1])) == (17, 3)
    assert not kinds[0] & kinds[1]


def test_by_texts_a_label_is_in_both_parts_with_two_rows_or_more(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=r"its 1 groups have 49 to 49 of 49 rows"):
        split(tmp_path, {"a": chain})


def test_groups_that_are_too_large_are_passed_over() -> None:
    groups = np.array([0, 0, 0, 1, 1, 2, 3])
    sets = np.zeros(7, dtype=np.int64)
    for seed in range(20):
        chosen = choose_rows(groups, sets, [2], seed)
        assert chosen.sum() == 2
        assert not chosen[:3].any()


def test_groups_are_numbered_by_their_first_rows() -> None:
    rows, things = np.array([0, 1, 2, 2, 3]), np.array([5, 1, 5, 0, 1])
    assert group_rows(5, rows, things).tolist() == [0, 1, 0, 1, 2]


def test_a_catalogue_without_a_development_part_says_how_to_make_one(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", [pair("q", "p")])
    (tmp_path / "datasets.yaml").write_text("train: [{name: a, file: a.jsonl}]\n")
    with pytest.raises(DataError, match="a step split makes"):
        part(tmp_path, split="dev")


@pytest.mark.parametrize(
    ("options", "place", "fix"),
    [
        ({"share": 0.1, "rows": 5}, "rows", "keep one"),
        ({"by": "labels"}, "by", "split it by texts"),
    ],
)
def test_bad_options_are_named_before_work_starts(
    tmp_path: Path, options: dict[str, Any], place: str, fix: str
) -> None:
    path = written(tmp_path / "a.jsonl", [pair("q", "p")])
    (problem,) = Split(data=(DataEntry(path=DataRef(str(path))),), **options).check(Glance())
    assert problem.where == place
    assert fix in problem.message


def test_more_rows_than_there_are_leave_none_to_train_on(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ask for fewer"):
        split(tmp_path, {"a": [pair("q", "p"), pair("r", "s")]}, rows=2)
