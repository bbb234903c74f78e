"""Laws of samplers, for any plugin. A broken law raises an AssertionError with the law's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emberge.contracts import Batch, DatasetInfo, Pool, Sampler


def check_sampler(sampler: Sampler, pool: Pool | None = None, *, repeats: bool = False) -> None:
    """Check a sampler against its laws.

    The same seed gives the same rows, and another seed other rows. Every row is in the pool. A batch has
    different rows of one dataset. Unless `repeats` is set, no row occurs twice in an epoch.

    Raises:
        AssertionError: if a law is broken; the message begins with its name.
    """
    pool = pool or {
        DatasetInfo("first", "retrieval", 101): range(101),
        DatasetInfo("second", "sts", 128): range(1, 128, 2),
        DatasetInfo("third", "retrieval", 230): range(230),
    }
    selection, again = (_list_rows(sampler.select(pool, 7)) for _ in range(2))
    assert selection == again, "seed: select with one seed chose different rows"
    pool_rows = _list_rows(pool)
    for name, rows in selection.items():
        assert set(rows) <= set(pool_rows[name]), f"pool: select made up rows of '{name}'"
        assert repeats or len(set(rows)) == len(rows), (
            f"repeats: select took a row of '{name}' twice"
        )
    if type(sampler).batches is Sampler.batches:
        covers_pool = all(rows == pool_rows[name] for name, rows in selection.items())
        assert _list_rows(sampler.select(pool, 8)) != selection or covers_pool, (
            "seed: select ignores its seed"
        )
        return
    first, second, other = (list(sampler.batches(pool, seed)) for seed in (7, 7, 8))
    assert _list_parts(first) == _list_parts(second), "seed: batches with one seed differ"
    assert _list_parts(first) != _list_parts(other), "seed: batches ignore their seed"
    _check_batches(first, pool_rows, repeats)


def _check_batches(
    batches: Sequence[Batch], rows_by_dataset: Mapping[str, Sequence[int]], repeats: bool
) -> None:
    seen: set[tuple[str, int]] = set()
    for batch in batches:
        names = {part.dataset for part in batch.parts}
        assert len(names) == 1, f"one dataset: a batch mixes datasets: {sorted(names)}"
        rows = [(part.dataset, int(row)) for part in batch.parts for row in part.rows]
        assert rows, "rows: a batch is empty"
        assert len(set(rows)) == len(rows), "repeats: a row is in a batch twice"
        assert repeats or not seen & set(rows), "repeats: a row is in two batches of an epoch"
        for name, row in rows:
            assert row in rows_by_dataset[name], f"pool: row {row} of '{name}' is not in the pool"
        seen |= set(rows)


def _list_rows(pool: Pool) -> dict[str, list[int]]:
    return {info.name: [int(row) for row in rows] for info, rows in pool.items()}


def _list_parts(batches: Sequence[Batch]) -> list[tuple[str, tuple[int, ...]]]:
    return [(p.dataset, tuple(int(r) for r in p.rows)) for b in batches for p in b.parts]
