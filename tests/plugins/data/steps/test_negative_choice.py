"""Choice of negatives: the worked numbers, and every option beside a plain reading of its words."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
from emberge_data import Exclusions, Lists, Passages, Space
from emberge_data.steps.negative_choice import (
    ChoiceOptions,
    choose,
    lowest_positives,
    take_in_turns,
    thresholds,
)
from numpy.typing import NDArray

from tests.support.tolerance import exactly


def passages(space: Space, positives: list[list[int]]) -> Passages:
    """Passages of a space whose queries never get their positives."""
    lists = Lists.of(positives)
    return Passages(lists, Exclusions(lists), len(space.documents))


def on_a_circle(*cosines: float) -> NDArray[np.float32]:
    """Vectors with these cosines to the first axis."""
    x = np.array(cosines)
    return np.stack([x, np.sqrt(1 - x**2)], axis=1).astype(np.float32)


def one_query(choice: ChoiceOptions, *cosines: float, positives: list[int]) -> list[int]:
    """The places chosen for a query beside documents of these cosines."""
    space = Space(on_a_circle(1.0), on_a_circle(*cosines))
    places = choose([space], np.array([0]), passages(space, [positives]), choice).places
    return [place for place in places[0].tolist() if place >= 0]


def test_a_margin_keeps_what_is_below_its_share_of_the_positives_score() -> None:
    cosines = (0.80, 0.79, 0.77, 0.7601, 0.7599, 0.74, 0.60)
    chosen = one_query(ChoiceOptions(count=6), *cosines, positives=[0])
    assert [cosines[place] for place in chosen] == [0.7599, 0.74, 0.60]


def test_below_a_negative_score_the_threshold_is_lower_still() -> None:
    found = thresholds(np.array([0.8, -0.2, 0.0]), 0.95)
    assert found.tolist() == exactly([0.76, -0.21, 0.0], size=1.0)
    chosen = one_query(ChoiceOptions(count=9), -0.2, -0.195, -0.205, -0.215, positives=[0])
    assert chosen == [3]


def test_the_lowest_of_several_positives_sets_the_threshold() -> None:
    cosines = (0.9, 0.5, 0.6, 0.49, 0.47)
    assert one_query(ChoiceOptions(count=9), *cosines, positives=[0, 1]) == [4]
    space = Space(on_a_circle(1.0, 1.0), on_a_circle(*cosines))
    lowest = lowest_positives(space, np.array([1, 0]), Lists.of([[0, 1], [2]]))
    scores = space.scores(np.array([0, 0]), np.array([2, 1]))
    assert lowest.tolist() == scores.tolist()


def test_without_a_margin_all_but_the_positives_are_taken() -> None:
    chosen = one_query(ChoiceOptions(count=9, margin=None), 0.5, 0.9, 0.7, positives=[0])
    assert chosen == [1, 2]


def test_a_passage_at_the_threshold_itself_is_a_negative() -> None:
    """With a margin of 1 one that scores as the positive does, be ranks counted or not."""
    cosines = (0.8, 0.8, 0.9, 0.7)
    for ranks in (None, (1, 4)):
        choice = ChoiceOptions(count=3, margin=1.0, ranks=ranks)
        assert one_query(choice, *cosines, positives=[0]) == [1, 3]


def test_ranks_count_what_is_allowed_before_the_threshold() -> None:
    cosines = (0.99, 0.8, 0.795, 0.75, 0.7, 0.65)
    choice = ChoiceOptions(count=2, ranks=(2, 4))
    # Ranks 1 to 5 are places 0, 2, 3, 4, 5; 0.795 is above the threshold of 0.76.
    assert one_query(choice, *cosines, positives=[1]) == [3, 4]
    assert one_query(ChoiceOptions(count=1, ranks=(1, 2)), *cosines, positives=[1]) == []


def test_lists_are_joined_in_turns_and_an_item_comes_once() -> None:
    assert take_in_turns([[1, 2, 3], [4, 1], [2, 5]]) == [1, 4, 2, 5, 3]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw teachers' vectors of few whole numbers, positives, and options."""
    n, m = draw(st.integers(1, 4)), draw(st.integers(2, 25))

    def side(rows: int) -> NDArray[np.float32]:
        numbers = draw(st.lists(st.integers(-3, 3), min_size=3 * rows, max_size=3 * rows))
        return np.array(numbers, np.float32).reshape(rows, 3)

    positives = st.lists(st.integers(0, m - 1), min_size=1, max_size=3)
    count = draw(st.integers(1, 5))
    first = draw(st.integers(1, 3))
    ranks = draw(st.sampled_from([None, (first, first + count + draw(st.integers(0, 9)))]))
    return {
        "spaces": [Space(side(n), side(m)) for _ in range(draw(st.integers(1, 3)))],
        "positives": draw(st.lists(positives, min_size=n, max_size=n)),
        "choice": ChoiceOptions(
            count=count,
            margin=draw(st.sampled_from([None, 0.5, 0.95, 1.0])),
            ranks=ranks,
        ),
    }


def candidates(case: dict[str, Any], query: int) -> list[list[int]]:
    """Each teacher's list of what a query may be given, in order."""
    choice, positives = case["choice"], set(case["positives"][query])
    rankings, passing = [], set(range(len(case["spaces"][0].documents))) - positives
    for space in case["spaces"]:
        m = len(space.documents)
        scores = space.scores(np.full(m, query), np.arange(m))
        if choice.margin is not None:
            lowest = min(scores[place] for place in positives)
            limit = lowest - (1 - choice.margin) * abs(lowest)
            passing -= {place for place in range(m) if scores[place] > limit}
        allowed = [place for place in range(m) if place not in positives]
        rankings.append(sorted(allowed, key=lambda place: (-scores[place], place)))
    first, last = choice.ranks or (1, len(case["spaces"][0].documents))
    return [[p for p in r[first - 1 : last] if p in passing] for r in rankings]


@hypothesis.given(cases())
def test_negatives_are_what_the_options_promise(case: dict[str, Any]) -> None:
    spaces, choice = case["spaces"], case["choice"]
    given = passages(spaces[0], case["positives"])
    queries = np.arange(len(case["positives"]))
    found = choose(spaces, queries, given, choice).places
    for query, places in enumerate(found):
        chosen = [place for place in places.tolist() if place >= 0]
        expected = take_in_turns(candidates(case, query))
        assert chosen == expected[: choice.count]
