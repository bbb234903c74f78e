"""A study's drawings hold its numbers, in words too."""

from __future__ import annotations

import pytest
from emberge_boom.study import build_study_figures

from tests.plugins.boom.studied import worked


def test_the_heat_map_has_the_change_of_every_pair() -> None:
    """Differences of losses in the order of the tree, nothing on the diagonal."""
    study = worked()
    figure, _ = build_study_figures(study)
    names = figure.heat_map.rows
    assert names == figure.heat_map.columns
    found = {
        (a, b): value
        for a, row in zip(names, figure.heat_map.values, strict=True)
        for b, value in zip(names, row, strict=True)
    }
    assert all((found[a, b] is None) == (a == b) for a, b in found)
    assert all(found[pair] == found[pair[::-1]] for pair in found)
    assert found["a", "c"] == pytest.approx(1.32 - 1.5)
    assert found["c", "d"] == pytest.approx(1.47 - 1.4)


def test_the_tables_beside_say_all_pairs_and_all_cuts() -> None:
    pairs, cuts = (told.table for told in build_study_figures(worked()))
    assert pairs.rows[0] == ["c + d", "1.4700", "1.4000", "+0.0700", "1.0500"]
    assert pairs.rows[6:] == [
        [f"{name} alone", "–", loss, "–", "–"]
        for name, loss in zip("abcd", ("1.0000", "1.2000", "2.0000", "0.8000"), strict=True)
    ]
    assert [row[1] for row in cuts.rows] == ["1", "2", "3", "4"]
    assert cuts.rows[1] == ["0.05", "2", "1: a, b, d; 2: c"]
