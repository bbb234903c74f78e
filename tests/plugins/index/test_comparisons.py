"""Comparisons of two models by numbers that a test chooses: distances, verdicts, lines, charts, probes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge import DataError, RecipeError
from emberge_index import diff_queries, thresholds_verb
from emberge_index.query_changes import Topic, changes_of
from emberge_index.space.canaries import (
    CANARIES,
    LONG_CANARIES,
    embed_canaries,
    probe_texts,
    prompts_of,
)
from emberge_index.space.compare import (
    FOUND,
    SAME,
    FitError,
    SpaceVerdict,
    canary_distance,
    fit_error,
    largest_distance,
    require_passport,
    require_sample,
    verdict_of,
)
from emberge_index.space.one_space import SpaceComparison, exit_code_of
from emberge_index.space.passport import Passport
from emberge_index.threshold_interval import ThresholdInterval
from emberge_index.threshold_map import threshold_map
from emberge_index.translation.probes import own_prompt, probes_of

from tests.support.translations import vectors

Rows = np.ndarray[Any, Any]

# ── distances and verdicts ──────────────────────────────────────────────────────────────────────


def test_the_largest_distance_is_a_share_of_the_longer_vector() -> None:
    first = np.array([[3.0, 0.0], [0.0, 1.0]])
    second = np.array([[4.0, 0.0], [0.0, 1.0]])
    assert largest_distance(first, second) == largest_distance(second, first) == 0.25
    assert largest_distance(first, first) == 0
    assert largest_distance(first / 64, second / 64) == 0.25, "whatever the rows' lengths"
    assert largest_distance(0 * first, 0 * first) == 0
    assert largest_distance(first, second[:, :1]) is None


def test_queries_are_compared_where_both_models_have_them() -> None:
    one, other = np.eye(2), np.array([[1.0, 0.0], [0.0, 2.0]])
    assert canary_distance({"document": one}, {"document": other}) == 0.5
    assert canary_distance({"document": one}, {"document": one, "query": other}) == 0
    assert canary_distance({"document": one}, {"document": one, "query": other}, "query") == 0.5


@pytest.mark.parametrize(
    ("distance", "found", "verdict"),
    [
        (0.0, None, "same"),
        (SAME, None, "same"),
        (1.001 * SAME, None, "foreign"),
        (1.0, FOUND, "translatable"),
        (1.0, FOUND - 0.001, "foreign"),
        (None, 1.0, "translatable"),
        (None, None, "foreign"),
    ],
)
def test_a_verdict_is_by_distance_and_then_by_the_fit(
    distance: float | None, found: float | None, verdict: str
) -> None:
    fit = None if found is None else FitError(9, 0.5, found, 0.1)
    assert verdict_of(distance, fit) == verdict
    assert (FOUND, SAME) == (0.9, 0.0632)


def test_a_fits_error_is_that_of_texts_which_it_has_not_seen() -> None:
    texts = [f"text {row}" for row in range(300)]
    source = vectors(300, 12)
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    found = fit_error(texts, source, source @ turned)
    assert (found.texts, found.found) == (300, 1)
    assert found.cosine == pytest.approx(1, abs=1e-3)
    assert found.ridge == pytest.approx(1e-6)
    noise = fit_error(texts, source, vectors(300, 12, seed=8))
    assert noise.found < 0.05
    assert noise.cosine < 0.9
    with pytest.raises(DataError, match="4 texts"):
        fit_error(texts[:4], source[:4], source[:4])


def test_the_lines_of_a_comparison_name_all_that_was_found() -> None:
    found = SpaceComparison(
        "a",
        "b",
        "translatable",
        {"weights": ("x", "y"), "pooling": ("mean", "cls")},
        ("q: ", "query: "),
        0.25,
        0.5,
        FitError(400, 0.91234, 0.951, 0.1),
    )
    assert list(found.lines()) == [
        "A a, B b",
        "  weights: differ",
        "  pooling: 'mean' and 'cls'",
        "  32 canaries: at most 25.00% of a vector's length apart",
        "  a fit on 400 texts: cosine 0.9123 on texts it has not seen, 95.1% find themselves",
        "  queries have other prompts: 'q: ' and 'query: '",
        "translatable: translate the stored vectors, or embed them again; never mix them",
    ]
    fit = {"texts": 400, "cosine": 0.91234, "found": 0.951, "ridge": 0.1, "before": None}
    assert found.plain()["fit"] == fit
    same = SpaceComparison("a", "b", "same", {}, ("", ""))
    assert list(same.lines()) == ["A a, B b", "same: vectors of both may be mixed"]
    verdicts: tuple[SpaceVerdict, ...] = ("same", "translatable", "foreign")
    assert [exit_code_of(one) for one in verdicts] == [0, 3, 4]


# ── canaries, prompts and probes ────────────────────────────────────────────────────────────────


def test_prompts_of_both_sides_are_found_by_their_names() -> None:
    assert prompts_of({}) == ("", "")
    assert prompts_of({"query": "q", "passage": "p"}) == ("q", "p")
    assert prompts_of({"document": "d", "passage": "p"}) == ("", "d")
    assert own_prompt({"passage": "p"}, "documents") == "p"
    assert own_prompt({"document": "", "passage": "p"}, "documents") == "p"
    assert own_prompt({"document": "d"}, "queries") == ""


def test_canaries_are_embedded_with_the_prompt_of_each_side(monkeypatch: Any) -> None:
    asked: list[tuple[int, str]] = []

    class Embedder:
        def __init__(self, encoder: Any, model: str) -> None:
            assert encoder.prompts is not None
            assert model == "mine"

        def embed(self, texts: Any, prompt: str) -> Rows:
            assert texts == (*CANARIES, *LONG_CANARIES)
            asked.append((len(texts), prompt))
            return np.arange(2.0 * len(texts)).reshape(-1, 2)

    monkeypatch.setattr("emberge.encoding.TextEmbedder", Embedder, raising=False)
    both: Any = SimpleNamespace(prompts={"query": "q: ", "document": "d: "})
    canaries = embed_canaries(both, "mine")
    assert set(canaries) == {"document", "long document", "query", "long query"}
    for side in ("document", "query"):
        assert canaries[side][[0, -1]].tolist() == [[0, 1], [62, 63]]
        assert canaries[f"long {side}"].tolist() == [[64, 65], [66, 67]]
    one: Any = SimpleNamespace(prompts={"query": "t: ", "document": "t: "})
    assert set(embed_canaries(one, "mine")) == {"document", "long document"}
    assert asked == [(34, "d: "), (34, "q: "), (34, "t: ")]


def test_probes_are_paragraphs_of_some_length_from_all_over_the_help() -> None:
    found = probe_texts(50)
    assert len(set(found)) == len(found) == 50
    assert all(8 <= len(text.split()) <= 30 for text in found)
    everything = probe_texts(10**6)
    assert set(found) < set(everything)
    assert {len(text.split()) for text in everything} == set(range(8, 31))
    step = len(everything) // 50
    assert list(found) == list(everything)[::step][:50]


def row(anchor: str, positives: Any = (), negatives: Any = ()) -> Any:
    return SimpleNamespace(anchor=anchor, positives=positives, negatives=negatives)


def test_each_query_knows_its_documents_among_all(tmp_path: Path) -> None:
    sets: Any = [
        [row("q1", ["d1", "d2"], ["n1", "n2"]), row("lone"), row("q2", ["d1"])],
        [row("q1", ["d3"], ["d2"]), row("q3", ["d2", "d2"])],
    ]
    found = probes_of(sets, tmp_path)
    assert list(found.documents) == ["d1", "d2", "n1", "n2", "lone", "d3"]
    assert list(found.queries) == ["q1", "q2", "q3"]
    assert found.relevant == [[0, 1, 5], [0], [1]]
    assert found.of("queries") is found.queries
    assert found.of("documents") is found.documents


# ── stored vectors ──────────────────────────────────────────────────────────────────────────────


def passport(**facts: Any) -> Passport:
    given: dict[str, Any] = {
        "weights": "w",
        "tokenizer": "t",
        "pooling": "mean",
        "prompts": ("", ""),
        "dimension": 8,
        "normalised": True,
        "max_length": None,
        "similarity": "cosine",
        **facts,
    }
    return Passport(**given)


def test_stored_vectors_have_the_length_that_the_passport_names() -> None:
    rows, path = vectors(30, 8), Path("index.npy")
    require_passport(path, rows, passport(), "a")
    require_passport(path, rows * 1.009, passport(), "a")
    require_passport(path, rows, passport(dimension=None), "a")
    require_passport(path, rows, passport(normalised=False), "a")
    require_passport(path, 3 * rows, passport(normalised=False, similarity="dot"), "a")
    with pytest.raises(DataError, match=r"index\.npy.*not of length one"):
        require_passport(path, rows * 1.011, passport(), "a")
    with pytest.raises(DataError, match=r"index\.npy.*compares by dot"):
        require_passport(path, rows, passport(normalised=False, similarity="dot"), "a")
    with pytest.raises(DataError, match=r"8 numbers .* has 9"):
        require_passport(path, rows, passport(dimension=9), "a")


def test_a_sample_is_of_documents_of_queries_or_of_another_model() -> None:
    documents, queries, path = vectors(9, 8), vectors(9, 8, seed=1), Path("index.npy")
    require_sample(path, 2 * documents, documents, queries, "a")
    require_sample(path, documents, documents, None, "a")
    with pytest.raises(DataError, match="prompts were mixed up"):
        require_sample(path, 2 * queries, documents, queries, "a")
    with pytest.raises(DataError, match="not those of a: of a sample of 9"):
        require_sample(path, vectors(9, 8, seed=2), documents, queries, "a")
    with pytest.raises(DataError, match="not those of a"):
        require_sample(path, queries, documents, None, "a")


# ── changed queries ─────────────────────────────────────────────────────────────────────────────

QUERIES = [f"query {place}" for place in range(4)]
DOCUMENTS = [f"document {place}" for place in range(5)]
CHANGES = changes_of([[0, 1], [0, 1], [2, 3], [0, 1]], [[0, 1], [1, 0], [4, 2], [3, 4]])


def test_lines_show_the_worst_queries_with_both_first_documents() -> None:
    assert list(diff_queries._list_changes(CHANGES, QUERIES, DOCUMENTS)) == [
        "Of 4 queries 75% have another first document, and 62% of the first 10 stay: 1 first hit lost, "
        "2 first hit moved, 1 same.",
        "first hit lost, 0% kept: query 3",
        "  - document 0",
        "  + document 3",
        "first hit moved, 50% kept: query 2",
        "  - document 2",
        "  + document 4",
        "first hit moved, 100% kept: query 1",
        "  - document 0",
        "  + document 1",
    ]
    many = changes_of([[0]] * 12, [[1]] * 12)
    shown = list(diff_queries._list_changes(many, ["q"] * 12, DOCUMENTS))
    assert len(shown) == 1 + 3 * 10


def test_the_numbers_of_a_query_name_lost_and_gained_documents() -> None:
    topics = [Topic(("word",), 2, changes_of([[0, 1]], [[0, 1]]))]
    found = diff_queries._encode_changes(CHANGES, [], QUERIES, DOCUMENTS)
    assert found["queries"][1] == {
        "query": "query 2",
        "group": "first hit moved",
        "overlap": 0.5,
        "old": [2, 3],
        "new": [4, 2],
        "lost": ["document 3"],
        "gained": ["document 4"],
    }
    assert found["overlap"] == CHANGES.overlap
    assert found["churn"] == 0.75
    assert found["groups"]["first hit moved"] == 2
    assert "topics" not in found
    one = changes_of([[0]], [[0]])
    found = diff_queries._encode_changes(one, topics, QUERIES, DOCUMENTS)
    assert found["topics"] == [
        {"words": ["word"], "central": "query 2", "queries": 1, "overlap": 1.0, "churn": 0.0}
    ]
    assert found["queries"][0]["topic"] == 0
    assert json.dumps(found)


def test_charts_count_queries_by_what_stays() -> None:
    figure = diff_queries._build_figure(CHANGES, QUERIES, DOCUMENTS)
    assert figure["title"] == "Old hits among the first 2 of the new model"
    assert figure["lines"]["labels"] == ["0", "1", "2"]
    assert figure["lines"]["series"] == {"queries": [1, 1, 2]}
    assert (figure["lines"]["x"], figure["lines"]["y"]) == ("documents that stay", "queries")
    assert figure["table"]["rows"][1] == [
        "first hit moved",
        "50%",
        "query 2",
        "document 2",
        "document 4",
    ]
    assert len(figure["table"]["rows"]) == 3
    assert figure["table"]["head"] == [
        "change",
        "kept",
        "query",
        "first document before",
        "first document now",
    ]
    many = changes_of([[0]] * 201, [[1]] * 201)
    assert len(diff_queries._build_figure(many, ["q"] * 201, DOCUMENTS)["table"]["rows"]) == 200


def test_topics_are_shown_with_what_they_keep() -> None:
    topics = [
        Topic((), 3, changes_of([[0, 1]], [[3, 4]])),
        Topic(("rent", "due"), 1, changes_of([[0, 1], [0, 1]], [[0, 2], [0, 1]])),
    ]
    assert list(diff_queries._list_topics(topics, QUERIES)) == [
        "topics, the worst first",
        "query 3: 1 query, 0% kept, 100% with another first document",
        "rent, due: 2 queries, 75% kept, 0% with another first document",
    ]
    assert list(diff_queries._list_topics([], QUERIES)) == []
    figure = diff_queries._build_topic_figure(topics, QUERIES)
    assert figure["lines"]["labels"] == ["1", "2"]
    assert figure["lines"]["series"] == {"hits": [0.0, 0.75], "first documents": [0.0, 1.0]}
    assert figure["table"]["rows"] == [
        ["1", "query 3", "1", "0%", "100%", "query 3"],
        ["2", "rent, due", "2", "75%", "0%", "query 1"],
    ]
    assert figure["table"]["head"] == [
        "topic",
        "words",
        "queries",
        "kept",
        "another first document",
        "most central query",
    ]


def test_long_texts_are_cut_and_put_on_one_line() -> None:
    assert diff_queries._cut_text("a\n  b\tc") == "a b c"
    assert diff_queries._cut_text("x" * 120) == "x" * 120
    assert diff_queries._cut_text("x" * 121) == "x" * 120 + "…"


# ── thresholds ──────────────────────────────────────────────────────────────────────────────────


def test_thresholds_of_the_command_line_are_numbers_from_minus_one_to_one() -> None:
    assert thresholds_verb._read_thresholds(["0.7,0.8", "-1", "1"]) == [0.7, 0.8, -1, 1]
    assert thresholds_verb._read_thresholds([]) == []
    for word in ("1.01", "-1.01", "nan", "inf"):
        with pytest.raises(RecipeError, match=rf"--at {word}: a cosine"):
            thresholds_verb._read_thresholds([f"0.5,{word}"])
    with pytest.raises(RecipeError, match=r"--at 0\.5,x: thresholds are numbers"):
        thresholds_verb._read_thresholds(["0.5", "x"])


def test_lines_of_a_map_have_its_table_and_what_was_asked() -> None:
    rows = np.random.default_rng(0).normal(size=(90, 6)) + 1
    found = threshold_map(rows, rows + 0.3)
    intervals = [ThresholdInterval(0.4, 0.6), ThresholdInterval(-1.0, -0.9)]
    lines = list(thresholds_verb._list_thresholds(found, [0.5, -1], intervals, 90))
    assert lines[:2] == [
        "cosines of 4,005 pairs of 90 different texts",
        "false positives   old      new",
    ]
    table = list(found.table())
    assert len(lines) == 5 + len(table)
    assert lines[-3].startswith("for rules between two documents")
    rate, old, new = table[1]
    assert lines[3] == f"         20.00%   {old:+.4f}  {new:+.4f}"
    assert rate == 0.2
    asked = found.moved(0.5)
    assert lines[-2] == (
        f"threshold 0.5 becomes {asked.new:.4f} (95 %: 0.4000 to 0.6000), at {asked.rate:.3%} false positives"
    )
    assert lines[-1].endswith("not sure: all pairs of different texts are more alike")
