"""Packed rows are tried without dropout, and leave a model in the mode that it was in."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from emberge.encoding import find_packing_problem
from emberge_encoder import TextEncoder
from torch import Tensor

from tests.support import tiny


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model with dropout."""
    folder = tmp_path_factory.mktemp("packing")
    tiny.transformer(folder, "AutoModelForMaskedLM", "xlm-roberta")
    return TextEncoder(pooling="mean").load(
        folder, device="cpu", dtype="float32", predicts_tokens=True
    )


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_for_the_trial_and_as_before_after_it(encoder: Any, training: bool) -> None:
    encoder.module.train(training)
    assert find_packing_problem(encoder) == ""
    assert {part.training for part in encoder.module.modules()} == {training}


def test_features_are_any_mapping(encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collate = encoder.collate
    monkeypatch.setattr(encoder, "collate", lambda texts: UserDict(collate(texts)))
    assert find_packing_problem(encoder) == ""


def _joined(self: Any, features: Mapping[str, Tensor]) -> Tensor:
    return torch.cumsum(features["input_ids"].float(), 1)[..., None]


def test_a_refusal_names_the_model_and_the_reason(
    encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(encoder.module.trunk).__name__
    for error, words in (
        (RuntimeError(" first\nsecond"), "first"),
        (IndexError(), "IndexError()"),
        (TypeError("of types"), "of types"),
        (NotImplementedError("not there"), "not there"),
    ):

        def states(self: Any, features: Any, error: Exception = error) -> Tensor:
            raise error

        monkeypatch.setattr(type(encoder), "states", states)
        found = find_packing_problem(encoder)
        assert found == f"{kind} cannot compute packed texts: {words}; take packing out"
    monkeypatch.setattr(type(encoder), "states", _joined)
    assert find_packing_problem(encoder) == (
        f"{kind} computes texts of a packed row otherwise than single ones, as if they saw each other; "
        "take packing out"
    )
