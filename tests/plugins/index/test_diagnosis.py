"""The search for causes, on vectors that are drawn for each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from emberge_index.served.diagnosis import Diagnosis, SentTexts, diagnose
from emberge_index.served.settings import Pooling, ServedSetting, UntriedError
from numpy.typing import NDArray

TEXTS = [f"text {number}" for number in range(6)]
NAMES = ["first", "second"]


@dataclass
class _DrawnVectors:
    """Vectors without a model: those of `near` lie so far from a setting's, all others are foreign."""

    limit: int | None = 48
    longest: int = 100
    makes_lower_case: bool = True
    near: Mapping[ServedSetting, tuple[ServedSetting, float]] = field(default_factory=dict)
    untried: Sequence[ServedSetting] = ()

    def embed(self, texts: Sequence[str], setting: ServedSetting) -> NDArray[np.float32]:
        if setting in self.untried:
            raise UntriedError("no vectors under this setting")
        draw = np.random.default_rng([*repr(setting).encode()])
        rows = draw.standard_normal((len(TEXTS), 64)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        if setting in self.near:
            other, distance = self.near[setting]
            rows = self.embed(TEXTS, other) + distance * rows
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows[[TEXTS.index(text) for text in texts]]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [self.longest] * len(texts)

    def list_poolings(self) -> Sequence[Pooling]:
        return ("cls", "last")


def _find(own: _DrawnVectors, setting: ServedSetting, sent: str = "") -> Diagnosis:
    served = own.embed(TEXTS, setting).astype(np.float64)
    return diagnose(served, SentTexts(TEXTS, sent, "doc ", "query "), own, candidates=NAMES)


def _names(found: Diagnosis) -> list[str]:
    assert not found.is_same
    return [cause.name for cause in found.causes]


@pytest.mark.parametrize(
    ("prompt", "sent", "name"),
    [
        ("", "", "prompt_missing"),
        ("doc doc ", "doc ", "prompt_doubled"),
        ("query ", "", "prompt_of_other_side"),
        ("query doc ", "doc ", "prompt_of_other_side"),
    ],
)
def test_prompts_are_those_of_the_client_and_the_server(prompt: str, sent: str, name: str) -> None:
    assert _names(_find(_DrawnVectors(), ServedSetting(prompt), sent)) == [name]


@pytest.mark.parametrize(
    ("limit", "length", "words"),
    [
        (48, 32, "32 tokens of a text were read, and the model reads 48"),
        (48, 512, "512 tokens of a text were read, and the model reads 48"),
        (None, 64, "64 tokens of a text were read, and the model reads all of them"),
    ],
)
def test_fewer_and_more_tokens_are_told(limit: int | None, length: int, words: str) -> None:
    found = _find(_DrawnVectors(limit=limit), ServedSetting("doc ", length=length))
    assert _names(found) == ["truncation_length"]
    assert words in found.causes[0].words


def test_lengths_that_cut_nothing_are_not_tried() -> None:
    """Without a limit of the model, a length over the longest text would be no cause."""
    own = _DrawnVectors(limit=None)
    assert _names(_find(own, ServedSetting("doc ", length=128))) == []


@pytest.mark.parametrize(
    ("makes_lower_case", "words"),
    [(True, "upper case was kept"), (False, "texts were made lower case")],
)
def test_the_case_is_what_the_tokenizer_does_not_do(makes_lower_case: bool, words: str) -> None:
    own = _DrawnVectors(makes_lower_case=makes_lower_case)
    setting = ServedSetting("doc ", case="kept" if makes_lower_case else "lower")
    found = _find(own, setting)
    assert _names(found) == ["case"]
    assert words in found.causes[0].words


@pytest.mark.parametrize("number", [1, 2])
def test_each_candidate_is_named(number: int) -> None:
    for setting, words in (
        (ServedSetting("doc ", model=number), "the vectors are those of "),
        (ServedSetting("doc ", tokenizer=number), "the tokenizer was that of "),
    ):
        found = _find(_DrawnVectors(), setting)
        assert [cause.words.partition(";")[0] for cause in found.causes] == [
            words + NAMES[number - 1]
        ]


def test_two_causes_are_found_behind_nearer_settings() -> None:
    """The nearest setting with one change need not be part of what explains the vectors."""
    right = ServedSetting("doc ", pooling="cls", length=32)
    nearer = [
        ServedSetting("", None),
        ServedSetting("doc ", model=1),
        ServedSetting("doc ", model=2),
    ]
    near = dict.fromkeys(nearer, (right, 0.3))
    near[ServedSetting("doc ", pooling="cls")] = (right, 0.4)
    found = _find(_DrawnVectors(near=near), right)
    assert _names(found) == ["pooling", "truncation_length"]
    assert found.explained == pytest.approx(0, abs=1e-6)
    assert found.distance > 1


def test_a_setting_that_cannot_be_tried_is_passed_over() -> None:
    own = _DrawnVectors(untried=[ServedSetting("doc ", pooling="cls")])
    assert _names(_find(own, ServedSetting("doc ", pooling="last"))) == ["pooling"]


def test_nearly_equal_vectors_are_the_same_up_to_rounding() -> None:
    plain = ServedSetting("doc ")
    for distance, is_same in ((0.05, True), (0.08, False)):
        served = ServedSetting("elsewhere ")
        own = _DrawnVectors(near={served: (plain, distance)})
        assert _find(own, served).is_same is is_same
