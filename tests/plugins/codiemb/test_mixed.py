"""The baseline: a step of several small batches, each with a dataset of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from emberge import Batch, Batches, DatasetInfo, PerDataset
from emberge.training import BatchPlan
from emberge_codiemb.mixed import Mixed

POOL = {
    DatasetInfo("find", "retrieval", 640): range(640),
    DatasetInfo("alike", "sts", 320): range(320),
}


def mixed(size: int = 32, draws: int = 4, **by_task: int) -> Mixed:
    return Mixed(batch_size=PerDataset(default=size, by_task=by_task), draws=draws)


def test_a_step_sees_several_datasets() -> None:
    batches = mixed().batches(POOL, 0)
    assert isinstance(batches, Batches)
    assert len(batches) == (640 + 320) // 32
    assert {len(batch.parts) for batch in batches} == {4}
    assert {len(part.rows) for batch in batches for part in batch.parts} == {8}
    tasks = Counter(frozenset(part.dataset for part in batch.parts) for batch in batches)
    assert tasks[frozenset({"find", "alike"})] > len(batches) / 2
    assert batches.kinds() == {("find", "auto"), ("alike", "auto")}
    for beyond in (len(batches), -1):
        with pytest.raises(IndexError):
            batches[beyond]


def test_draws_are_independent_and_may_share_rows() -> None:
    batches = list(mixed(draws=8).batches(POOL, 0))
    by_draw = [
        [(b.parts[i].dataset, *map(int, b.parts[i].rows)) for b in batches] for i in range(8)
    ]
    assert len({tuple(draw) for draw in by_draw}) == 8
    for draw in by_draw:
        rows = [(name, row) for name, *rows in draw for row in rows]
        assert len(set(rows)) == len(rows)
    first, second = ({(n, r) for n, *rows in by_draw[i] for r in rows} for i in (0, 1))
    assert first & second


def companies(batches: Iterable[Batch], name: str, draw: int) -> frozenset[frozenset[int]]:
    """Rows of a dataset as they stand together in one draw's small batches, in whatever order."""
    parts = [batch.parts[draw] for batch in batches if batch.parts[draw].dataset == name]
    return frozenset(frozenset(map(int, part.rows)) for part in parts)


def test_another_seed_draws_other_steps_of_other_rows() -> None:
    steps = [list(mixed(draws=2).batches(POOL, seed)) for seed in (0, 1)]
    first, second = ([tuple(part.dataset for part in b.parts) for b in one] for one in steps)
    assert first != second
    for name in ("find", "alike"):
        first, second = (companies(one, name, draw=0) for one in steps)
        assert not first & second


def test_data_for_less_than_a_step_makes_one() -> None:
    """Two draws of one small batch each: one step has them both."""
    pool = {DatasetInfo("only", "sts", 4): range(4)}
    batches = mixed(8, draws=2).batches(pool, 0)
    assert len(batches) == 1
    assert [len(part.rows) for part in batches[0].parts] == [4, 4]
    for place in (-1, 1):
        with pytest.raises(IndexError):
            batches[place]
    alone = mixed(8, draws=1).batches({DatasetInfo("only", "sts", 8): range(8)}, 0)
    assert alone.kinds() == {("only", "auto")}


def test_small_batches_follow_their_task() -> None:
    parts = [part for batch in mixed(32, sts=8).batches(POOL, 0) for part in batch.parts]
    assert {(part.dataset, len(part.rows)) for part in parts} == {("find", 8), ("alike", 2)}


def test_each_small_batch_has_negatives_of_its_own_kind() -> None:
    plan = BatchPlan(POOL, (mixed(),), seed=1, in_batch_datasets={"find"})
    assert {(p.dataset, p.in_batch) for b in plan for p in b.parts} == set(plan.list_groups())
    assert set(plan.list_groups()) == {("find", True), ("alike", False)}
    assert plan.fingerprint == BatchPlan(POOL, (mixed(),), seed=1).fingerprint
    assert plan.fingerprint != BatchPlan(POOL, (mixed(),), seed=2).fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 64}, "at least 64, one example a draw, not 32"),
        ({"batch_size": PerDataset(by_task={"sts": 4})}, "at least 8, one example a draw, not 4"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixed(**options)  # type: ignore[arg-type]
