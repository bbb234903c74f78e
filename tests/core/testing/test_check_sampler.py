"""Every law of `check_sampler` finds a sampler that breaks it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from emberge import Batch, Pool, Sampler
from emberge.contracts import BatchPart
from emberge.testing import check_sampler

from tests.support.laws import find_broken_law

CALLS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class _Batches(Sampler):
    """Make batches of two rows, with one fault."""

    fault: str = ""

    def batches(self, pool: Pool, seed: int) -> Iterator[Batch]:
        seed = {"differ": next(CALLS), "ignore": 0}.get(self.fault, seed)
        for info, rows in pool.items():
            drawn = random.Random(f"{seed} {info.name}").sample([*rows], 20)
            changed = {
                "is in a batch twice": [drawn[0], drawn[0], *drawn[2:]],
                "is in two batches": [*drawn, *drawn[:2]],
                "is not in the pool": [*drawn[1:], 1000],
            }.get(self.fault, drawn)
            for pair in zip(changed[::2], changed[1::2], strict=True):
                other = BatchPart("first" if info.name != "first" else "third", pair)
                parts = (BatchPart(info.name, pair), *[other] * (self.fault == "mixes datasets"))
                yield Batch(parts)
        if self.fault == "is empty":
            yield Batch((BatchPart("first", ()),))


@dataclass(frozen=True, kw_only=True)
class _Selection(Sampler):
    """Select ten rows of each dataset, with one fault."""

    fault: str = ""

    def select(self, pool: Pool, seed: int) -> Pool:
        seed = {"different rows": next(CALLS), "ignores its seed": 0}.get(self.fault, seed)
        selection = {}
        for info, rows in pool.items():
            drawn = random.Random(seed).sample([*rows], 10)
            added = {"made up rows": [1000], "twice": drawn[:1]}.get(self.fault, [])
            selection[info] = drawn + added
        return selection


@pytest.mark.parametrize("sampler", [_Batches(), _Selection()])
def test_a_sound_sampler_breaks_no_law(sampler: Sampler) -> None:
    assert find_broken_law(check_sampler, sampler) == ""


BATCH_FAULTS = (
    *("differ", "ignore", "mixes datasets", "is empty"),
    *("is in a batch twice", "is in two batches", "is not in the pool"),
)
SELECTION_FAULTS = ("different rows", "made up rows", "twice", "ignores its seed")


@pytest.mark.parametrize("fault", BATCH_FAULTS)
def test_a_broken_law_of_batches_is_named(fault: str) -> None:
    assert fault in find_broken_law(check_sampler, _Batches(fault=fault))


@pytest.mark.parametrize("fault", SELECTION_FAULTS)
def test_a_broken_law_of_selections_is_named(fault: str) -> None:
    assert fault in find_broken_law(check_sampler, _Selection(fault=fault))


def test_a_sampler_may_be_declared_to_repeat_rows() -> None:
    assert find_broken_law(check_sampler, _Batches(fault="is in two batches"), repeats=True) == ""
    assert find_broken_law(check_sampler, _Selection(fault="twice"), repeats=True) == ""
