"""Words of a scatter chart: they overlap no point, no interval and no other words."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from emberge_report.charts.point_words import Box, PlacedWords, place_words

FRAME = Box(0, 0, 1000, 400)


def _scatter(count: int, seed: int, spread: float) -> list[tuple[float, float, str]]:
    rng = random.Random(seed)
    return [
        (500 + spread * rng.uniform(-1, 1), 200 + 0.3 * spread * rng.uniform(-1, 1), f"model {i}")
        for i in range(count)
    ]


def _require_apart(
    points: list[tuple[float, float, str]], placed: list[PlacedWords], occupied: list[Box]
) -> None:
    for one, other in combinations(placed, 2):
        assert not one.box.meets(other.box), (one.words, other.words)
    for words in placed:
        assert words.box.is_inside(FRAME)
        assert not any(words.box.meets(box) for box in occupied)
        for x, y, name in points:
            marker = Box(x - 5, y - 5, x + 5, y + 5)
            assert name == words.words or not words.box.meets(marker)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [400, 80, 15])
def test_words_of_crowded_points_are_apart_and_all_are_drawn(seed: int, spread: float) -> None:
    points = _scatter(9, seed, spread)
    intervals = [Box(x - 2, y - 40, x + 2, y + 40) for x, y, _ in points]
    placed = place_words(points, FRAME, intervals, further=True)
    _require_apart(points, placed, intervals)
    assert {words.words for words in placed} == {words for *_, words in points}


def test_words_are_next_to_their_point_where_there_is_room() -> None:
    placed = place_words([(100, 100, "left"), (990, 100, "right")], FRAME, further=True)
    assert [(words.anchor, words.start) for words in placed] == [("start", None), ("end", None)]


def test_words_further_away_have_a_line_to_their_point() -> None:
    points = [(500, 200 + 3 * i, f"model {i}") for i in range(6)]
    placed = place_words(points, FRAME, further=True)
    by_name = {words.words: words for words in placed}
    distant = [name for name, words in by_name.items() if words.start is not None]
    assert distant
    for x, y, name in points:
        assert by_name[name].start in (None, (x, y))
        assert ("<line" in by_name[name].draw()) == (name in distant)


def test_words_without_room_beside_their_point_are_left_out_unless_they_may_be_further() -> None:
    points = [(500.0, 200.0, f"model {i}") for i in range(4)]
    assert len(place_words(points, FRAME)) < 4 == len(place_words(points, FRAME, further=True))
