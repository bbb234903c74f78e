"""Scores of pairs by hand: their segments on disk, their scales, and the figures of a set."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge import DataEntry, DataRef, Example, ModelRef
from emberge.data import load_datasets
from emberge.model_folder import CrossEncoderFacts
from emberge_data.json_lines import JsonLines
from emberge_data.steps import pair_scores
from emberge_data.steps.cross_encoder import CrossEncoderModel
from emberge_data.steps.pair_scores import PairScores, Segment, list_pairs, pair_cosines
from emberge_data.steps.score_pairs import ScorePairs, _apply_sigmoid, _Figures, _yield_outcomes
from emberge_data.steps.teacher import OpenTeacher, Teacher

from tests.support.training_data import dataset

EXAMPLES = [
    Example("q", ("a", "b"), ("x",)),
    Example("r", ("c",), ()),
    Example("s", ("d",), ("y", "z")),
]
SET = dataset("pairs", "retrieval", EXAMPLES)


def lengths(segment: Segment) -> tuple[list[float], int]:
    """Scores that tell pairs apart, and a count of cut pairs."""
    return [float(ord(text)) for _, text in list_pairs(segment)], len(segment)


def test_segments_end_with_the_row_that_fills_them(tmp_path: Path) -> None:
    assert PairScores(tmp_path, SET)._size == pair_scores.SEGMENT == 4096
    scores = PairScores(tmp_path / "a" / "b", SET, 4)
    done: list[int] = []
    scores.fill(lengths, done=done.append)
    assert done == [2, 3]
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "a" / "b").iterdir()}
    assert read == {
        "0.json": {"cut": 2, "scores": [97.0, 98.0, 120.0, 99.0]},
        "1.json": {"cut": 1, "scores": [100.0, 121.0, 122.0]},
    }
    assert [*scores.rows()] == [
        (0, EXAMPLES[0], (97.0, 98.0), (120.0,)),
        (1, EXAMPLES[1], (99.0,), ()),
        (2, EXAMPLES[2], (100.0,), (121.0, 122.0)),
    ]
    (tmp_path / "a" / "b" / ".half.json").write_text("{")
    assert scores.cut() == 3
    (tmp_path / "a" / "b" / "1.json").unlink()
    again = []
    scores.fill(lambda segment: again.append(segment) or lengths(segment))  # type: ignore[func-returns-value]
    assert again == [[(2, EXAMPLES[2])]]
    scores.fill(lambda _: pytest.fail("scored again"), rank=1, ranks=2)


def test_pairs_are_positives_then_negatives_row_after_row() -> None:
    assert list_pairs([(0, EXAMPLES[0]), (2, EXAMPLES[2])]) == [
        *(("q", "a"), ("q", "b"), ("q", "x")),
        *(("s", "d"), ("s", "y"), ("s", "z")),
    ]


def step(**options: Any) -> ScorePairs:
    return ScorePairs(data=(), teacher=Teacher(model=ModelRef("one")), **options)


def test_logits_become_shares() -> None:
    assert [_apply_sigmoid(x) for x in (0.0, 1000.0, -1000.0)] == [0.5, 1.0, 0.0]
    assert _apply_sigmoid(2.0) == pytest.approx(1 / (1 + math.exp(-2)), rel=1e-15)
    assert _apply_sigmoid(-2.0) == pytest.approx(1 - _apply_sigmoid(2.0), rel=1e-15)


def test_rows_get_their_scores_and_figures_are_of_the_teachers_own(tmp_path: Path) -> None:
    scores, figures = PairScores(tmp_path, SET), _Figures()
    scores.fill(lengths)
    found = list(_yield_outcomes(scores, lambda score: score / 100, figures))
    assert [(one.row, one.before, one.note) for one in found] == [
        (0, EXAMPLES[0], "scored, a negative above a positive"),
        (1, EXAMPLES[1], "scored"),
        (2, EXAMPLES[2], "scored, a negative above a positive"),
    ]
    assert [one.after and one.after.positive_scores for one in found] == [
        (0.97, 0.98),
        (0.99,),
        (1.0,),
    ]
    assert [one.after and one.after.negative_scores for one in found] == [(1.2,), (), (1.21, 1.22)]
    assert figures.plain() == {
        "lowest": 97.0,
        "highest": 122.0,
        "positives": 0.985,
        "negatives": 1.21,
    }
    assert _Figures().plain() == {"lowest": math.inf, "highest": -math.inf}
    level = PairScores(tmp_path / "level", SET)
    level.fill(lambda segment: ([1.0] * len(list_pairs(segment)), 0))
    assert {one.note for one in _yield_outcomes(level, float, _Figures())} == {"scored"}


def test_a_negative_between_two_positives_is_above_one_of_them(tmp_path: Path) -> None:
    scores = PairScores(tmp_path, SET)
    scores.fill(lambda _: ([0.9, 0.5, 0.6, 0.3, 0.8, 0.7, 0.2], 0))
    found = [one.note for one in _yield_outcomes(scores, float, _Figures())]
    assert found == ["scored, a negative above a positive", "scored", "scored"]


def test_a_cross_encoder_reads_equal_pairs_once_with_the_prompts_of_its_teacher() -> None:
    read: list[Any] = []

    class Cross:
        def logits(self, pairs: Any) -> Any:
            read.append(pairs)
            return np.arange(len(pairs), dtype=np.float32)

        def count_cut(self, pairs: Any) -> int:
            return len(pairs)

    teacher = Teacher(model=ModelRef("one"), query_prompt="Q: ", document_prompt="D: ")
    segment = [(0, EXAMPLES[0]), (1, Example("q", ("b",), ("y",)))]
    cross: Any = Cross()
    found = ScorePairs(data=(), teacher=teacher)._read_logits(cross, segment)
    assert found == ([0.0, 1.0, 2.0, 1.0, 3.0], 5)
    assert read == [[("Q: q", f"D: {text}") for text in "abxy"]]
    step()._read_logits(cross, segment[1:])
    assert read[1] == [("q", "b"), ("q", "y")]


@pytest.mark.parametrize(
    ("config", "cross", "outputs"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, True, 2),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}},
            True,
            None,
        ),
        (
            {
                "architectures": ["AForSequenceClassification", "B"],
                "id2label": dict.fromkeys("abc"),
            },
            True,
            3,
        ),
        ({"architectures": ["BertModel", "AForSequenceClassification"]}, False, None),
        ({"architectures": []}, False, None),
        ({"architectures": None}, False, None),
        (None, False, None),
    ],
)
def test_a_bare_folder_is_a_cross_encoder_by_its_first_class(
    config: Any, cross: bool, outputs: int | None, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert CrossEncoderFacts.read(tmp_path).is_one is cross
    found = CrossEncoderFacts.read(tmp_path).problems
    assert len(found) == (outputs is not None)
    assert all(f"config.json: the model has {outputs} outputs" in message for message in found)


def test_without_pairs_or_a_limit_nothing_is_read_and_nothing_is_cut() -> None:
    model = CrossEncoderModel.__new__(CrossEncoderModel)
    model.limit, model._plain = 3, True
    assert model.logits([]).shape == (0,)
    assert str(model.logits([]).dtype) == "float32"
    assert model.count_cut([]) == 0

    def tokens(first: list[str], second: list[str], **options: Any) -> Any:
        assert options == {"truncation": False, "verbose": False}
        return {"input_ids": [a + b for a, b in zip(first, second, strict=True)]}

    model._model = SimpleNamespace(tokenizer=tokens)
    pairs = [("a", "bb"), ("aa", "bb"), ("a", "bbbb")]
    assert model.count_cut(pairs) == 2
    model.limit = None
    assert model.count_cut(pairs) == 0
    model.limit, model._plain = 3, False
    assert model.count_cut(pairs) == 0


def test_cosines_of_pairs_are_in_the_order_of_texts_and_between_minus_1_and_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = ({"query": one.anchor, "pos": one.positives, "neg": one.negatives} for one in EXAMPLES)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (stored,) = load_datasets(
        [DataEntry(path=DataRef(str(path)))],
        readers=[JsonLines()],
        resolve=lambda ref: Path(ref.text),
    )
    turns = {"q": 0.0, "r": 1.0, "s": 2.0, "a": 0.5, "b": 3.0, "x": 2.5, "c": 1.0, "d": 5.1}
    turns |= {"y": 2.0, "z": 4.0}

    def vectors(texts: Any, *_: Any) -> Any:
        angles = [turns[text] for text in texts]
        return np.array([[math.cos(one), math.sin(one)] for one in angles], np.float32)

    teacher: Any = SimpleNamespace(queries=vectors, documents=vectors)
    around: Any = SimpleNamespace(work=tmp_path, machine=SimpleNamespace(device="cpu"))
    score = pair_cosines(teacher, stored, around)
    segment = [(row, stored[row]) for row in (2, 0, 1)]
    found, cut = score(segment)
    expected = [math.cos(turns[anchor] - turns[text]) for anchor, text in list_pairs(segment)]
    assert list(found) == pytest.approx(expected, abs=1e-6)
    assert cut == 0
    beyond = np.array([-1.0000001, 1.0000001, 0.5, 0, 0, 0, 0])
    monkeypatch.setattr("emberge_data.steps.search.space.Space.scores", lambda *_: beyond)
    assert score(segment)[0][:3] == [-1.0, 1.0, 0.5]


# ── prompts of teachers ─────────────────────────────────────────────────────────────────────────


class Store:
    """A store whose encoder reads three tokens, with what it was asked to embed."""

    def __init__(self, **prompts: str) -> None:
        self.encoder = SimpleNamespace(
            prompts=prompts, tokenise=lambda *_, **__: [SimpleNamespace(ids=[0, 0, 0])]
        )
        self.asked: list[Any] = []

    def embed(self, texts: Any, *, prompt: str, max_length: int | None) -> Any:
        self.asked.append((prompt, max_length))
        return SimpleNamespace(lengths=np.array([len(text) for text in texts]))


@pytest.mark.parametrize(
    ("options", "own", "of_set", "symmetric", "query", "document"),
    [
        ({}, {}, "", False, "", ""),
        ({}, {"query": "q", "document": "d", "passage": "p"}, "", False, "q", "d"),
        ({}, {"query": "q", "passage": "p"}, "s", False, "s", "p"),
        ({}, {"query": "q", "passage": "p"}, "s", True, "s", "s"),
        ({"query_prompt": ""}, {"query": "q", "passage": "p"}, "s", False, "", "p"),
        ({"query_prompt": "o"}, {"query": "q"}, "s", True, "o", "o"),
        ({"document_prompt": ""}, {"passage": "p"}, "s", True, "s", ""),
        ({"document_prompt": "x"}, {"passage": "p"}, "", False, "", "x"),
    ],
)
def test_prompts_are_the_options_then_the_sets_then_the_models(
    options: dict[str, Any],
    own: dict[str, str],
    of_set: str,
    symmetric: bool,
    query: str,
    document: str,
) -> None:
    store: Any = Store(**own)
    warned: list[str] = []
    around: Any = SimpleNamespace(warn=warned.append)
    teacher = OpenTeacher(
        Teacher(model=ModelRef("one"), max_length=9, **options), "one", store, around
    )
    given = dataset("pairs", "retrieval", EXAMPLES, prompt=of_set, symmetric=symmetric)
    teacher.queries(["aa"], given)
    teacher.documents(["a", "aaa", "aaaa"], given)
    assert store.asked == [(query, 9), (document, 9)]
    (message,) = warned
    assert message.startswith("pairs: 2 of 3 texts (66.7%) are as long as one reads or longer (3 ")
