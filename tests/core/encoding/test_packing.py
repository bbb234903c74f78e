"""Packed rows are tried without dropout, and leave a model in the mode that it was in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from emberge.encoding.packing import packing_problem
from emberge_encoder.text_encoder import TextEncoder
from torch import Tensor

from tests.support import tiny


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model with dropout."""
    folder = tmp_path_factory.mktemp("packing")
    tiny.transformer(folder, "AutoModelForMaskedLM", "xlm-roberta")
    return TextEncoder(pooling="mean").load(folder, device="cpu", dtype="float32", predicts=True)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_for_the_trial_and_as_before_after_it(encoder: Any, training: bool) -> None:
    encoder.module.train(training)
    assert packing_problem(encoder) == ""
    assert {part.training for part in encoder.module.modules()} == {training}


def _failing(self: Any, features: Mapping[str, Tensor]) -> Tensor:
    raise ValueError("no rows of several texts")


def _joined(self: Any, features: Mapping[str, Tensor]) -> Tensor:
    return torch.cumsum(features["input_ids"].float(), 1)[..., None]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("states", "words"), [(_failing, "no rows of several texts"), (_joined, "saw each other")]
)
def test_a_refused_model_is_in_the_mode_that_it_was_in(
    encoder: Any, training: bool, states: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(encoder), "states", states)
    encoder.module.train(training)
    assert words in packing_problem(encoder)
    assert {part.training for part in encoder.module.modules()} == {training}
