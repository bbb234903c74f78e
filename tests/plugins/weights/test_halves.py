"""Halves of units: each half judges what the other one has chosen, and every halving is another."""

from __future__ import annotations

from emberge_weights.candidates import HALVINGS, halves


def test_each_half_judges_what_the_other_has_chosen() -> None:
    found = list(halves([12, 7], seed=0))
    assert len(found) == 2 * HALVINGS
    for first, second in zip(found[::2], found[1::2], strict=True):
        for side in (0, 1):
            assert [one.tolist() for one in second[side]] == [o.tolist() for o in first[1 - side]]
        for size, seen, unseen in zip([12, 7], *first, strict=True):
            assert sorted([*seen, *unseen]) == list(range(size))


def test_no_halving_is_like_another() -> None:
    found = [frozenset(seen[0].tolist()) for seen, _ in halves([30], seed=0)]
    assert len(set(found)) == 2 * HALVINGS
