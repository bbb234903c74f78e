"""Thresholds under another model: the map by hand, its table, its file, and the verb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emberge import DataError
from emberge.cli.main import main
from emberge_index.thresholds.threshold_map import read_map, threshold_map
from hypothesis import given
from hypothesis import strategies as st


def on_a_circle(angles: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


RNG = np.random.default_rng(0)
ANGLES = RNG.uniform(0, np.pi, 120)
OLD, NEW = on_a_circle(ANGLES), on_a_circle(ANGLES / 2)
MAP = threshold_map(OLD, NEW)


def test_equal_models_keep_their_thresholds() -> None:
    same = threshold_map(OLD, 3 * OLD)
    for threshold in (-0.5, 0.0, 0.7, 0.99, 1.0):
        assert same(threshold) == pytest.approx(threshold, abs=1e-12)
    assert same.shift == pytest.approx(0, abs=1e-12)


def test_a_space_of_half_the_angles_has_the_cosine_of_half_the_angle() -> None:
    """Ranks of pairs are the same, so at equal rates cos a becomes cos a / 2 = √((1 + cos a) / 2).

    Between two points of the map, which are 7,140 pairs' quantiles, it is a chord of that.
    """
    for threshold in (-0.9, -0.5, 0.0, 0.5, 0.9):
        assert MAP(threshold) == pytest.approx(np.sqrt((1 + threshold) / 2), abs=0.01)
    assert MAP.pairs == 120 * 119 // 2


def test_both_thresholds_let_the_same_share_of_pairs_pass() -> None:
    above = np.triu(np.ones((120, 120), bool), 1)
    old, new = ((rows @ rows.T)[above] for rows in (OLD, NEW))
    table = list(MAP.table())
    assert [rate for rate, *_ in table][:3] == [0.5, 0.2, 0.1]
    assert table[-1][0] * MAP.pairs >= 30
    for rate, mine, other in table:
        for cosines, threshold in ((old, mine), (new, other)):
            # The map's points are 2 % apart in the rate.
            assert float((cosines >= threshold).mean()) == pytest.approx(rate, rel=0.03)


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_a_higher_threshold_never_becomes_a_lower_one(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert MAP(low) <= MAP(high) + 1e-12
    assert MAP(1.0) == 1.0


def test_pairs_that_mean_the_same_are_no_false_positives() -> None:
    twins = np.concatenate([OLD, OLD])
    pairs = [(i, i + 120) for i in range(120)]
    counted, all_ = threshold_map(twins, twins, same=pairs), threshold_map(twins, twins)
    assert all_.pairs - counted.pairs == 120
    assert counted.old[-2] < 1 - 1e-12 < all_.old[-2]


def test_a_map_is_read_as_it_was_written() -> None:
    assert read_map(json.loads(json.dumps(MAP.plain()))) == MAP
    with pytest.raises(DataError, match="make it again"):
        read_map({"rates": []})


def test_too_few_probes_are_refused() -> None:
    with pytest.raises(DataError, match="30"):
        threshold_map(OLD[:29], NEW[:29])


def test_the_verb_maps_the_thresholds_that_are_asked_for(
    bert: Path, berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.tiny import WORDS

    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(" ".join(RNG.choice(WORDS, 8)) for _ in range(60)))
    file = tmp_path / "map.json"
    words = [str(bert), str(berts[0]), "--texts", str(texts), "--json", str(file), "--at", "0.9"]
    assert main(["thresholds", *words]) == 0
    shown = capsys.readouterr().out
    assert f"becomes {read_map(json.loads(file.read_text()))(0.9):.4f}" in shown
    assert main(["thresholds", str(bert), str(berts[0]), "--at", "1.5"]) == 2
