"""Search of nearest documents: exact, whatever the blocks, the precision set, and the ties."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from emberge import EmbergeError
from emberge_data.steps.consistency_filter import count_higher
from emberge_data.steps.search.exact import SearchMemory, cosines, slack, squared_lengths, unit_rows
from emberge_data.steps.search.exclusions import Exclusions, Lists
from emberge_data.steps.search.nearest import nearest
from emberge_data.steps.search.space import Space
from numpy.typing import NDArray

# One byte is as little as can be asked for: blocks of 1024 products.
TIGHT = SearchMemory(memory=1)


def all_scores(space: Space) -> NDArray[np.float64]:
    """The exact cosine of every query with every document."""
    n, m = len(space.queries), len(space.documents)
    return space.scores(np.arange(n), np.tile(np.arange(m), (n, 1)))


def brute_force(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The places of the highest scores, the earlier of equal ones first, -1 for those of -inf."""
    places = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    found = np.full((len(scores), count), -1)
    found[:, : places.shape[1]] = places
    allowed = np.take_along_axis(scores, places, axis=1) > -np.inf
    found[:, : places.shape[1]][~allowed] = -1
    return found


def integer_vectors(rows: int, width: int) -> st.SearchStrategy[NDArray[np.float32]]:
    """Vectors of small whole numbers: many are parallel, equal, or zero."""
    row = st.lists(st.integers(-2, 2), min_size=width, max_size=width)
    return st.lists(row, min_size=1, max_size=rows).map(lambda r: np.array(r, dtype=np.float32))


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    """Draw queries, documents, exclusions, ceilings and a count."""
    width = draw(st.integers(1, 5))
    queries, documents = draw(integer_vectors(6, width)), draw(integer_vectors(60, width))
    n, m = len(queries), len(documents)
    lists = st.lists(st.integers(0, m - 1), max_size=m)
    groups = draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n))
    return {
        "queries": queries,
        "documents": documents,
        "excluded": Exclusions(
            Lists.of(draw(st.lists(lists, min_size=n, max_size=n))),
            np.array(groups),
            Lists.of([draw(lists), draw(lists)]),
        ),
        "ceilings": np.array(
            draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=n, max_size=n))
        ),
        "count": draw(st.integers(1, m + 2)),
    }


@hypothesis.given(searches())
def test_the_nearest_allowed_documents_are_those_of_brute_force(given: dict[str, Any]) -> None:
    space = Space(given["queries"], given["documents"])
    expected = all_scores(space)
    expected[expected > given["ceilings"][:, None]] = -np.inf
    everything = np.arange(len(space.documents))
    for query, row in enumerate(expected):
        row[~given["excluded"].allows(query, everything)] = -np.inf
    found = nearest(
        [space],
        np.arange(len(given["queries"])),
        given["count"],
        ceilings=given["ceilings"][None],
        excluded=given["excluded"],
        limits=TIGHT,
    )[0]
    np.testing.assert_array_equal(found.places, brute_force(expected, given["count"]))
    best = -np.sort(-expected, axis=1)[:, : given["count"]]
    np.testing.assert_array_equal(found.scores[:, : best.shape[1]], best)


@hypothesis.given(searches(), st.data())
def test_a_document_is_allowed_only_if_it_is_below_every_teachers_ceiling(
    given: dict[str, Any], data: st.DataObject
) -> None:
    n, m = len(given["queries"]), len(given["documents"])
    other = data.draw(integer_vectors(1, 3))
    draw = np.random.default_rng(0)
    spaces = [
        Space(given["queries"], given["documents"]),
        Space(np.tile(other, (n, 1)), draw.integers(-2, 3, (m, 3)).astype(np.float32)),
    ]
    ceilings = np.stack([given["ceilings"], given["ceilings"][::-1]])
    scores = [all_scores(space) for space in spaces]
    forbidden = (scores[0] > ceilings[0][:, None]) | (scores[1] > ceilings[1][:, None])
    found = nearest(spaces, np.arange(n), given["count"], ceilings=ceilings, limits=TIGHT)
    for one, theirs in zip(found, scores, strict=True):
        theirs[forbidden] = -np.inf
        np.testing.assert_array_equal(one.places, brute_force(theirs, given["count"]))


def crowded(seed: int = 0, dimension: int = 48) -> Space:
    """Queries and documents in bundles closer than float32 products can tell apart, some of them equal."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(4, dimension))
    documents = np.repeat(centres, 60, axis=0)
    documents += draw.normal(size=documents.shape) * draw.choice([0, 1e-7, 1e-6], (240, 1))
    queries = centres[draw.integers(0, 4, 30)] + 0.3 * draw.normal(size=(30, dimension))
    return Space(queries.astype(np.float32), documents.astype(np.float32))


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("memory", [1, 1 << 20, 1 << 30])
def test_documents_that_float32_cannot_tell_apart_are_in_exact_order(
    memory: int, precision: str
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        space = crowded()
        found = nearest([space], np.arange(30), 70, limits=SearchMemory(memory))[0]
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    scores = all_scores(space)
    # The case is one: products in float32 would put some documents into another order.
    units = [
        unit_rows(side.at(slice(None)), side.lengths) for side in (space.queries, space.documents)
    ]
    products = (units[0] @ units[1].T).numpy()
    assert (brute_force(products, 70) != brute_force(scores, 70)).any()
    np.testing.assert_array_equal(found.places, brute_force(scores, 70))


def test_an_encoder_that_embeds_all_texts_alike_gives_the_earliest_documents() -> None:
    space = Space(np.ones((3, 7), np.float32), np.full((500, 7), 0.1, np.float32))
    found = nearest([space], np.arange(3), 4, limits=TIGHT)[0]
    assert found.places.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("dimension", [1, 2, 3, 64, 385, 4096])
def test_a_float32_product_is_off_by_less_than_the_bound_and_the_bound_is_no_idle_one(
    dimension: int,
) -> None:
    draw = torch.Generator().manual_seed(dimension)
    vectors = torch.randn(200 if dimension <= 64 else 30, dimension, generator=draw)
    lengths = squared_lengths(vectors)
    units = unit_rows(vectors, lengths)
    exact = cosines(vectors[:, None], vectors[None], lengths[:, None], lengths[None])
    off = (units @ units.T).double() - exact
    assert float(off.abs().max()) <= slack(dimension)
    # One addend after the other, in which all roundings go one way: the worst there is.
    ones = torch.full((dimension,), 1 / math.sqrt(dimension))
    total = torch.zeros(())
    for addend in ones * ones:
        total = total + addend
    worst = abs(float(total) - 1)
    assert worst <= slack(dimension)
    assert slack(dimension) <= 2.0**-23 * (dimension + 4)


def test_the_cosine_is_right_to_the_last_digits_of_float64_and_one_for_a_vector_itself() -> None:
    draw = np.random.default_rng(3)
    vectors = draw.normal(size=(20, 37)).astype(np.float32)
    space = Space(vectors, vectors)
    scores = all_scores(space)
    assert (np.diag(scores) == 1.0).all()
    exact = [[Fraction(float(x)) for x in row] for row in vectors]
    for i in range(20):
        for j in range(i):
            dot = sum(x * y for x, y in zip(exact[i], exact[j], strict=True))
            lengths = [math.sqrt(sum(x * x for x in exact[k])) for k in (i, j)]
            assert scores[i, j] == pytest.approx(float(dot) / math.prod(lengths), abs=2.0**-46)


def test_the_score_of_a_pair_does_not_depend_on_the_pairs_beside_it() -> None:
    space = crowded()
    whole = all_scores(space)
    for query, document in [(0, 0), (3, 77), (29, 239)]:
        alone = space.scores(np.array([query]), np.array([document]))
        assert alone.tolist() == [whole[query, document]]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_an_error(wrong: float) -> None:
    documents = np.ones((5, 3), np.float32)
    documents[4, 1] = wrong
    with pytest.raises(EmbergeError, match="not finite; take another"):
        nearest([Space(documents[:2], documents)], np.arange(2), 1)


@hypothesis.given(searches(), st.data())
def test_the_number_of_higher_documents_is_that_of_brute_force(
    given: dict[str, Any], data: st.DataObject
) -> None:
    space = Space(given["queries"], given["documents"])
    n, m = len(space.queries), len(space.documents)
    chosen = st.lists(st.integers(0, m - 1), min_size=n, max_size=n).map(np.array)
    documents = data.draw(chosen)
    among = np.unique(data.draw(st.lists(st.integers(0, m - 1), min_size=1)))
    scores = all_scores(space)
    own_scores = scores[np.arange(n), documents][:, None]
    ties = (scores == own_scores) & (np.arange(m) != documents[:, None])
    higher = (scores > own_scores) + ties / 2
    counted = np.isin(np.arange(m), among)
    found = count_higher(space, np.arange(n), documents, among, limits=TIGHT)
    assert found.tolist() == (higher * counted).sum(axis=1).tolist()
    own = given["excluded"].own
    spared = np.array([[place in own[i].tolist() for place in range(m)] for i in range(n)])
    found = count_higher(space, np.arange(n), documents, among, spared_by_pair=own, limits=TIGHT)
    assert found.tolist() == (higher * (counted & ~spared)).sum(axis=1).tolist()


def test_ranks_are_exact_where_float32_cannot_tell() -> None:
    space = crowded()
    scores = all_scores(space)
    documents = np.arange(30) * 8
    own = scores[np.arange(30), documents][:, None]
    ties = (scores == own).sum(axis=1) - 1
    higher = (scores > own).sum(axis=1) + ties / 2
    found = count_higher(space, np.arange(30), documents, np.arange(240))
    assert found.tolist() == higher.tolist()


def test_lists_give_their_places_with_their_rows() -> None:
    rows, places = Lists.of([[5, 1, 5], [], [2]]).pairs(np.array([2, 0, 1]))
    assert rows.tolist() == [0, 1, 1]
    assert places.tolist() == [2, 1, 5]
