"""Schedules: the worked numbers of BOOM, shares as promised, and the laws of samplers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from emberge import Batch, DataError, DatasetInfo, PerDataset, Pool, Sampler
from emberge.contracts import Tail
from emberge.testing import check_sampler
from emberge_train.samplers.one_dataset_samplers import (
    BatchShuffle,
    DatasetSequential,
    TaskSequential,
)
from emberge_train.samplers.proportional import Proportional
from emberge_train.samplers.two_stage import TwoStage
from numpy.typing import NDArray

from tests.support.laws import find_broken_law

ONCE = (BatchShuffle, DatasetSequential, TaskSequential)
TASKS = ("retrieval", "reranking", "classification", "clustering", "sts", "pair_classification")


def pool_of(*sets: tuple[str, str, int], weight: float = 1.0) -> Pool:
    return {DatasetInfo(n, task, size, weight): range(size) for n, task, size in sets}  # type: ignore[arg-type]


MANY = pool_of(
    ("msmarco", "retrieval", 40),
    ("dup", "reranking", 24),
    ("nli", "retrieval", 64),
    ("topics", "clustering", 16),
    ("intents", "classification", 32),
    ("moods", "classification", 24),
    ("alike", "sts", 48),
)


def size(value: int, **by_task: int) -> PerDataset[int]:
    return PerDataset(default=value, by_task=by_task)


def names(batches: Iterable[Batch]) -> list[str]:
    return [part.dataset for batch in batches for part in batch.parts]


def runs(batches: Iterable[Batch]) -> list[str]:
    """Datasets in order, neighbours that are equal told once."""
    found = names(batches)
    return [name for i, name in enumerate(found) if not i or found[i - 1] != name]


def pairs(batches: Iterable[Batch]) -> list[tuple[str, int]]:
    return [(p.dataset, int(row)) for batch in batches for p in batch.parts for row in p.rows]


def test_batch_size_may_differ_by_task_and_dataset() -> None:
    sets = (("a", "sts", 8), ("b", "sts", 8), ("c", "retrieval", 8))
    sizes = PerDataset(default=8, by_task={"sts": 4}, by_dataset={"b": 2})
    batches = list(BatchShuffle(batch_size=sizes).batches(pool_of(*sets), 0))
    assert {b.parts[0].dataset: len(b.parts[0].rows) for b in batches} == {"a": 4, "b": 2, "c": 8}
    assert Counter(names(batches)) == {"a": 2, "b": 4, "c": 1}, "smaller batches are more steps"
    with pytest.raises(DataError, match=r"'c' \(retrieval\) has no batch_size"):
        BatchShuffle(batch_size=PerDataset(by_task={"sts": 4})).batches(pool_of(*sets), 0)


@pytest.mark.parametrize(
    ("tail", "sizes", "alone"),
    [("drop", [4, 4], 0), ("wrap", [4, 4, 4], 3), ("keep", [2, 4, 4], 3)],
)
def test_tails_and_a_dataset_smaller_than_a_batch(tail: Tail, sizes: list[int], alone: int) -> None:
    sampler = BatchShuffle(batch_size=size(4), tail=tail)
    batches = list(sampler.batches(pool_of(("a", "sts", 10)), 0))
    assert sorted(len(b.parts[0].rows) for b in batches) == sizes
    assert len({row for _, row in pairs(batches)}) == (8 if tail == "drop" else 10)
    small = ("b", "sts", 3)
    if alone:
        assert [len(b.parts[0].rows) for b in sampler.batches(pool_of(small), 0)] == [alone]
        return
    with pytest.warns(UserWarning, match=r"'b' \(3 rows, batches of 4\).*lower their batch_size"):
        list(sampler.batches(pool_of(("a", "sts", 10), small), 0))
    with pytest.raises(DataError, match=r"no dataset fills a batch.*tail: keep"):
        list(sampler.batches(pool_of(small), 0))


def test_datasets_come_one_after_another_by_task() -> None:
    sampler = DatasetSequential(batch_size=size(8), pin_last=("msmarco", "dup"))
    found = runs(sampler.batches(MANY, 0))
    assert sorted(found[:2]) == ["intents", "moods"]
    assert found[2:] == ["topics", "alike", "nli", "msmarco", "dup"]
    orders = {tuple(runs(sampler.batches(MANY, seed))[:2]) for seed in range(12)}
    assert orders == {("intents", "moods"), ("moods", "intents")}


def test_reranking_comes_with_retrieval_unless_it_is_named() -> None:
    together = runs(DatasetSequential(batch_size=size(8)).batches(MANY, 3))
    assert sorted(together[-3:]) == ["dup", "msmarco", "nli"]
    order = ("retrieval", "reranking", "sts", "classification", "clustering")
    named = runs(DatasetSequential(batch_size=size(8), order=order).batches(MANY, 3))
    assert named[2:4] == ["dup", "alike"]


def test_tasks_come_one_after_another_shuffled_inside() -> None:
    batches = TaskSequential(batch_size=size(4)).batches(MANY, 0)
    task = {info.name: info.task for info in MANY}
    kinds = ["retrieval" if task[n] == "reranking" else task[n] for n in names(batches)]
    turns = [k for i, k in enumerate(kinds) if not i or kinds[i - 1] != k]
    assert turns == ["classification", "clustering", "sts", "retrieval"]
    assert len(runs(batches)) > 12  # inside a task the datasets take turns by chance


def test_the_first_stage_is_retrieval_and_the_second_has_every_task() -> None:
    sampler = TwoStage(batch_size=size(4))
    batches = list(sampler.batches(MANY, 0))
    first = [b for b in batches if b.stage == 1]
    second = [b for b in batches if b.stage == 2]
    assert batches == first + second
    assert Counter(names(first)) == {"msmarco": 10, "dup": 6, "nli": 16}
    assert Counter(names(second)) == {
        **{"msmarco": 5, "dup": 3, "nli": 8},
        **{"topics": 4, "intents": 8, "moods": 6, "alike": 12},
    }
    assert {b.negatives for b in first} == {"in_batch"}
    assert {b.negatives for b in second} == {"hard_only"}
    for stage in (first, second):
        rows = pairs(stage)
        assert len(set(rows)) == len(rows)
    kinds = sampler.batches(MANY, 0).kinds()
    assert kinds == {(p.dataset, b.negatives) for b in batches for p in b.parts}


def test_a_set_that_begins_again_does_so_in_another_order() -> None:
    (batches,) = BatchShuffle(batch_size=size(4)).cut_dataset_batches(pool_of(("b", "sts", 8)), 0)
    rows = [int(r) for b in batches.with_count(10) for p in b.parts for r in p.rows]
    turns = [rows[i : i + 8] for i in range(0, len(rows), 8)]
    assert len(turns) == 5
    assert all(sorted(turn) == list(range(8)) for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [
        # 8000 : 2000 : 200 by size; by square roots 89.44 : 44.72 : 14.14.
        (Proportional(), [0.78431, 0.19608, 0.01961]),
        (Proportional(temperature=2.0), [0.60308, 0.30154, 0.09536]),
        (Proportional(weight=PerDataset(default=1.0, by_dataset={"c": 10})), [2 / 3, 1 / 6, 1 / 6]),
        (Proportional(weight=PerDataset(by_task={"retrieval": 0.25})), [0.47619, 0.47619, 0.04762]),
    ],
)
def test_proportional_gives_the_worked_shares(sampler: Proportional, shares: list[float]) -> None:
    pool = pool_of(("a", "retrieval", 8000), ("b", "sts", 2000), ("c", "sts", 200))
    datasets = sampler.cut_dataset_batches(pool, 0)
    assert sampler.compute_shares(datasets) == pytest.approx(shares, abs=2e-4)
    counted = Counter(names(sampler.batches(pool, 0)))
    for name, share in zip("abc", shares, strict=True):
        assert counted[name] == pytest.approx(share * 10_200 / 32, abs=1.1)


def test_shares_count_examples() -> None:
    pool = pool_of(("find", "retrieval", 400), ("alike", "sts", 400))
    both = size(16, sts=4)
    examples = Counter(names(Proportional(batch_size=both, temperature=2).batches(pool, 0)))
    assert examples == {"find": 25, "alike": 100}


EVERY = (*ONCE, Proportional, TwoStage)


def rows_by_set(batches: Iterable[Batch]) -> dict[str, tuple[int, ...]]:
    """Rows of every dataset in the order in which they come."""
    found: dict[str, tuple[int, ...]] = {}
    for name, row in pairs(batches):
        found[name] = (*found.get(name, ()), row)
    return found


def test_two_stages_draw_batches_for_each_seed_and_a_second_sample_for_each_set() -> None:
    pool = pool_of(("a", "retrieval", 40), ("b", "retrieval", 40))
    drawn, first_cuts = [], []
    for seed in (0, 1):
        batches = TwoStage(batch_size=size(4)).batches(pool, seed)
        rows = rows_by_set(b for b in batches if b.stage == 2)
        drawn += [frozenset(rows["a"]), frozenset(rows["b"])]
        first_cuts.append({frozenset(pairs([b])) for b in batches if b.stage == 1})
    assert len(set(drawn)) == 4
    assert first_cuts[0] != first_cuts[1]


@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
@pytest.mark.parametrize("kind", EVERY)
def test_samplers_keep_their_laws(kind: type[BatchShuffle], tail: str) -> None:
    repeats = tail == "wrap" or kind not in ONCE
    sampler = kind(batch_size=size(16), tail=tail)  # type: ignore[arg-type]
    assert find_broken_law(check_sampler, sampler, repeats=repeats) == ""


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (DatasetSequential(pin_last=("msmacro",)), "no dataset here; did you mean 'msmarco'"),
        (TaskSequential(batch_size=size(8), order=("sts", "retrieval")), "'topics' is for"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(sampler: Sampler, message: str) -> None:
    with pytest.raises(DataError, match=message):
        sampler.batches(MANY, 0)


def test_two_stages_need_retrieval() -> None:
    with pytest.raises(DataError, match="begins with retrieval or reranking"):
        TwoStage().batches(pool_of(("alike", "sts", 64)), 0)


def _texts(lengths: Sequence[int]) -> Pool:
    info = DatasetInfo("t", "text", len(lengths), tokens=np.asarray(lengths, np.int64))
    return {info: range(len(lengths))}


# Of the four, the last begins in the first batch and ends after it.
@pytest.mark.parametrize(
    "lengths", [np.random.default_rng(0).integers(3, 60, 500), np.full(4, 59)], ids=["500", "four"]
)
@pytest.mark.parametrize("tail", ["drop", "keep", "wrap"])
def test_batches_of_tokens_are_full_but_for_a_text(tail: Tail, lengths: NDArray[np.int64]) -> None:
    sampler = BatchShuffle(batch_tokens=PerDataset(default=200), tail=tail)
    batches = [batch.parts[0].rows for batch in sampler.batches(_texts(lengths), 3)]
    sizes = sorted(int(lengths[np.asarray(rows)].sum()) for rows in batches)
    full, rest = divmod(int(lengths.sum()), 200)
    assert len(batches) == full + (tail != "drop")
    short = sizes[:1] if tail == "keep" else []
    assert all(200 - 60 < size < 200 + 60 for size in sizes[len(short) :])
    assert all(size > 0 and abs(size - rest) < 60 for size in short)
    rows = sorted(int(row) for batch in batches for row in batch)
    if tail == "keep":
        assert rows == list(range(len(lengths)))
    else:
        assert len(set(rows)) >= len(lengths) - (60 if tail == "drop" else 0)
    assert all(len(set(map(int, batch))) == len(batch) for batch in batches)


def test_pairs_go_by_examples_beside_texts_by_tokens() -> None:
    pool = {**_texts([10] * 12), **pool_of(("pairs", "retrieval", 12))}
    sampler = BatchShuffle(batch_size=size(3), batch_tokens=PerDataset(default=60))
    counted = Counter((b.parts[0].dataset, len(b.parts[0].rows)) for b in sampler.batches(pool, 0))
    assert counted == {("t", 6): 2, ("pairs", 3): 4}


def test_a_batch_of_tokens_that_a_text_does_not_fit_into_is_refused() -> None:
    sampler = BatchShuffle(batch_tokens=PerDataset(default=40))
    with pytest.raises(DataError, match=r"'t': batch_tokens 40 is less than .* 41; raise it"):
        sampler.batches(_texts([10, 41]), 0)
