"""Thresholds under another model: the map by hand, its table, its file, and the verb."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from emberge import DataError
from emberge.cli.main import main
from emberge_index import threshold_interval
from emberge_index import threshold_map as map_module
from emberge_index.threshold_interval import threshold_intervals
from emberge_index.threshold_map import RATES, PairCosines, ThresholdMap, threshold_map
from emberge_index.thresholds_verb import store_as
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


def test_a_map_is_whole_in_its_file() -> None:
    found = json.loads(json.dumps(MAP.plain()))
    points = (tuple(found[key]) for key in ("rates", "old", "new"))
    assert ThresholdMap(*points, found["pairs"]) == MAP


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
    assert f" {60 * 59 // 2:,} pairs of 60 " in shown
    found = json.loads(file.read_text())
    assert f"becomes {np.interp(0.9, found['old'], found['new']):.4f}" in shown
    assert main(["thresholds", str(bert), str(berts[0]), "--at", "1.5"]) == 2


def test_vectors_are_compared_as_they_are_stored(tmp_path: Path) -> None:
    rows = RNG.normal(size=(50, 12)).astype(np.float32)
    bits = store_as(rows, "binary", None, "--new-ranges")
    distance = (np.packbits(rows[0] > 0) ^ np.packbits(rows[1] > 0)).astype(np.uint8)
    hamming = int(np.unpackbits(distance).sum())
    assert bits[0] @ bits[1] / 12 == pytest.approx(1 - 2 * hamming / 12)
    assert store_as(rows, "float32", None, "--new-ranges") is rows
    own = store_as(rows, "int8", None, "--new-ranges")
    assert 0 < np.abs(own - rows).max() <= np.ptp(rows, axis=0).max() / 255
    np.savez(tmp_path / "ranges.npz", ranges=np.stack([-np.ones(12), np.ones(12)]).astype("f4"))
    given = store_as(rows, "int8", tmp_path / "ranges.npz", "--new-ranges")
    assert given.max() < 1.01 < rows.max()
    with pytest.raises(DataError, match="ranges"):
        store_as(rows[:, :5], "int8", tmp_path / "ranges.npz", "--old-ranges")
    with pytest.raises(DataError, match="give more texts, or --old-ranges FILE"):
        store_as(rows[:1], "int8", None, "--old-ranges")


def test_the_verb_maps_to_the_cosines_of_bits(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.tiny import WORDS

    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(" ".join(RNG.choice(WORDS, 8)) for _ in range(60)))
    file = tmp_path / "map.json"
    words = [str(bert), str(bert), "--texts", str(texts), "--json", str(file), "--new-as", "binary"]
    assert main(["thresholds", *words]) == 0
    found = json.loads(file.read_text())
    assert (found["old_form"], found["new_form"]) == ("float32", "binary")
    steps = (np.array(found["new"]) + 1) * 32 / 2  # bits of 32 that agree
    assert np.mean(np.abs(steps - steps.round()) < 1e-4) > 0.9, "but for points between two"
    assert found["old"] != found["new"]
    for form, ranges, said in (("binary", file, "only int8"), ("int8", tmp_path / "no", "no such")):
        faulty = [*words[:4], "--old-as", form, "--old-ranges", str(ranges)]
        assert main(["thresholds", *faulty]) == 2
        assert f"--old-ranges {ranges}: " in (err := capsys.readouterr().err)
        assert said in err


# ── all pairs, in bounded memory ────────────────────────────────────────────────────────────────

AWAY = np.eye(6)[0]
CROWD = np.random.default_rng(4).normal(size=(400, 6)) + AWAY
SHARES = 1 - np.geomspace(1, 1 / 79_800, 300)


def all_cosines(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (unit @ unit.T)[np.triu_indices(len(rows), 1)]


def small_cells(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(map_module, "BLOCK", 4096)
    monkeypatch.setattr(map_module, "KEPT", kept)
    monkeypatch.setattr(map_module, "CELLS", 4096)


@pytest.mark.parametrize("rows", [CROWD, np.repeat(CROWD[:100], 4, axis=0)])
def test_cosines_that_do_not_fit_the_memory_have_the_same_quantiles(
    rows: np.ndarray,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pairs by chance, and with many equal ones."""
    small_cells(monkeypatch, 79_000)
    found = PairCosines(rows).quantiles(SHARES)
    np.testing.assert_allclose(found, np.quantile(all_cosines(rows), SHARES), rtol=0, atol=1e-12)


def test_too_many_cosines_of_one_cell_are_told_apart_by_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_cells(monkeypatch, 0)
    found = PairCosines(CROWD).quantiles(SHARES)
    apart = found - np.quantile(all_cosines(CROWD), SHARES)
    assert np.abs(apart).max() <= 2 / 4096 / map_module.PARTS + 1e-12


def test_each_pair_is_counted_once_but_those_that_mean_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = [(3, 9), (9, 3), (399, 0), (5, 5), (9, 200)]
    small_cells(monkeypatch, 0)
    found = np.sort(np.concatenate([*PairCosines(CROWD, same).blocks()]))
    unit = CROWD / np.linalg.norm(CROWD, axis=1, keepdims=True)
    counted = np.triu(np.ones((400, 400), bool), 1)
    counted[[3, 0, 9], [9, 399, 200]] = False
    np.testing.assert_allclose(found, np.sort((unit @ unit.T)[counted]), rtol=0, atol=1e-12)
    assert len(PairCosines(CROWD, same)) == len(found) == counted.sum()


def test_memory_grows_with_the_texts_and_not_with_their_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tracemalloc

    small_cells(monkeypatch, 200_000)
    monkeypatch.setattr(map_module, "CELLS", 1 << 16)
    rows = np.random.default_rng(5).normal(size=(1500, 8))
    tracemalloc.start()
    threshold_map(rows, rows)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * 1500 * 1500  # the matrix of cosines has twice as many bytes


def test_rates_are_even_in_the_logarithm_and_the_table_has_those_of_thirty_pairs() -> None:
    rates = MAP.rates
    assert (rates[0], rates[-1]) == (1, 0)
    assert rates[-2] == pytest.approx(1 / 7140)
    assert len(rates) == 513
    assert rates[100] / rates[99] == pytest.approx(rates[300] / rates[299])
    assert min(rate for rate, *_ in MAP.table()) == 0.005
    assert MAP.old[-1] == MAP.new[-1] == 1
    assert MAP.shift == max(abs(new - old) for _, old, new in MAP.table())
    assert MAP.plain()["format"] == 1
    assert MAP.plain()["pairs"] == 7140
    for row, (rate, old, new) in zip(MAP.plain()["table"], MAP.table(), strict=True):
        assert row == {"rate": rate, "old": old, "new": new}
    few = threshold_map(OLD[:30], NEW[:30])
    assert len(few.rates) == 30 * 29 // 2 + 1
    assert few.pairs == 435
    with pytest.raises(DataError, match="only 59 pairs"):
        threshold_map(OLD[:30], OLD[:30], [(i, j) for i in range(30) for j in range(i)][:376])
    with pytest.raises(DataError, match="of 30 and 31"):
        threshold_map(OLD[:30], OLD[:31])
    broken = NEW.copy()
    broken[3] = np.nan
    with pytest.raises(DataError, match="new model are not finite"):
        threshold_map(OLD, broken)


# ── what cannot be told ─────────────────────────────────────────────────────────────────────────


def test_a_threshold_below_every_pair_cannot_be_told() -> None:
    crowd = threshold_map(CROWD, CROWD + AWAY)
    least = crowd.old[0]
    below = crowd.moved((least - 1) / 2)
    assert not below.known
    assert below.rate == 1
    assert "all pairs" in below.doubt
    share = (below.old + 1) / (least + 1)
    assert below.new == pytest.approx(-1 + share * (crowd.new[0] + 1))
    assert below.shift == pytest.approx(abs(below.new - below.old))
    assert crowd.moved(least).known
    assert crowd.moved(-1).new == -1
    above = crowd.moved(crowd.old[-3])
    assert not above.known
    assert "fewer than 30" in above.doubt


@pytest.mark.parametrize("threshold", [-1.01, 1.01, float("nan"), float("inf")])
def test_a_threshold_that_is_no_cosine_is_refused(threshold: float) -> None:
    with pytest.raises(DataError, match="from -1 to 1"):
        MAP(threshold)
    with pytest.raises(DataError, match="from -1 to 1"):
        MAP.moved(threshold)


def test_rates_go_from_a_half_to_one_in_ten_thousand() -> None:
    steps = [1 / rate for rate in RATES]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (2, 10_000)
    assert all(low < high <= 2.5 * low for low, high in itertools.pairwise(steps))


# ── intervals ───────────────────────────────────────────────────────────────────────────────────


def test_the_interval_has_the_threshold_and_is_wide_where_few_pairs_are_above_it() -> None:
    draw = np.random.default_rng(8)
    old = draw.normal(size=(300, 6))
    new = old + 0.2 * draw.normal(size=old.shape)
    mapped = threshold_map(old, new)
    high = mapped.old[-60]
    common, rare = threshold_intervals(old, new, [0.3, high], mapped)
    assert common.low <= mapped(0.3) <= common.high
    assert rare.low <= mapped(high) <= rare.high
    assert common.high - common.low < 0.1
    few = [threshold_intervals(old[:n], new[:n], [0.3], mapped)[0] for n in (40, 300)]
    assert few[0].high - few[0].low > few[1].high - few[1].low
    (nothing,) = threshold_intervals(old[:40], new[:40], [0.99999], mapped)
    assert nothing.high == 1


def test_a_sample_of_many_texts_has_its_interval_around_the_threshold_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threshold_interval, "MOST_TEXTS", 60)
    draw = np.random.default_rng(8)
    old = draw.normal(size=(600, 6))
    new = old.copy()
    new[1::2] += draw.normal(size=(300, 6))  # the sample has other texts than the rest
    mapped = threshold_map(old, new)
    (interval,) = threshold_intervals(old, new, [0.3], mapped)
    (moved,) = threshold_intervals(old, new, [0.3], lambda at: mapped(at) + 0.3)
    assert interval.low <= mapped(0.3) <= interval.high
    assert moved.low == pytest.approx(interval.low + 0.3)


def test_pairs_have_their_rows_in_the_order_of_their_cosines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(map_module, "BLOCK", 14)  # two rows at once
    rows = np.random.default_rng(3).normal(size=(7, 4))
    pairs = PairCosines(rows, [(1, 4), (6, 0)])
    first, second = pairs.rows()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(np.concatenate([*pairs.blocks()]), (unit[first] * unit[second]).sum(1))
    assert len(first) == len(pairs) == 19
    assert not {(1, 4), (0, 6)} & {*zip(first.tolist(), second.tolist(), strict=True)}


def test_pairs_of_one_meaning_do_not_move_the_interval() -> None:
    draw = np.random.default_rng(9)
    old = draw.normal(size=(60, 6))
    doubled = np.concatenate([old, old[:1]])
    new = doubled + 0.1 * draw.normal(size=doubled.shape)
    counted, left_out = (
        threshold_intervals(doubled, new, [0.9999], float, same)[0] for same in ((), [(0, 60)])
    )
    assert counted.low < 1
    assert (left_out.low, left_out.high) == (1, 1)  # no other pair is that near


def test_the_verb_warns_of_its_own_texts_and_of_a_decimal_comma(
    bert: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(bert), str(berts[0])]
    assert main(["thresholds", *models, "--at", "0,62"]) == 2
    assert "write 0.62" in capsys.readouterr().err
    assert main(["thresholds", *models, "--at", "0.5"]) == 0
    written = capsys.readouterr()
    assert "--texts FILE" in written.err
    assert "(95 %: " in written.out
