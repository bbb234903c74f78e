from __future__ import annotations

import pytest
from emberge import DataError, DatasetInfo, Pool
from emberge_boom.core_subset import CoreSubset

OLD = {"a": 1000, "b": 7, "c": 300}
NEW = {"d": 50}


def pool(**sizes: int) -> Pool:
    return {DatasetInfo(name, "retrieval", size): range(size) for name, size in sizes.items()}


def kept(core: CoreSubset, seed: int = 0, **sizes: int) -> dict[str, list[int]]:
    found = core.select(pool(**(sizes or {**OLD, **NEW})), seed)
    return {info.name: [int(row) for row in rows] for info, rows in found.items()}


def test_the_new_is_kept_whole_and_of_each_old_set_its_share() -> None:
    found = kept(CoreSubset(new=("d",)))
    assert found["d"] == list(range(50))
    assert {name: len(rows) for name, rows in found.items()} == {
        "a": 400,
        "b": 3,
        "c": 120,
        "d": 50,
    }
    for name, rows in found.items():
        assert rows == sorted(set(rows))
        assert set(rows) <= set(range({**OLD, **NEW}[name]))


def test_a_core_depends_on_the_seed_alone() -> None:
    core = CoreSubset(new=("d",))
    assert kept(core) == kept(core)
    assert kept(core) != kept(core, seed=1)
    # What is new changes nothing of the core.
    other = kept(CoreSubset(new=("e", "f")), **OLD, e=4, f=9)
    assert other["a"] == kept(CoreSubset(new=("d",)))["a"]


def test_a_share_of_all_is_all() -> None:
    assert kept(CoreSubset(new=("d",), ratio=1.0)) == {
        name: list(range(size)) for name, size in {**OLD, **NEW}.items()
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoreSubset(new=()), "at least one"),
        (
            lambda: kept(CoreSubset(new=("dd",))),
            "new names 'dd', which is no dataset here; did you mean 'd'",
        ),
        (lambda: kept(CoreSubset(new=("a", "b", "c", "d"))), "every dataset is new"),
    ],
)
def test_what_cannot_be_a_core_is_refused(make: object, message: str) -> None:
    with pytest.raises((ValueError, DataError), match=message):
        make()  # type: ignore[operator]
