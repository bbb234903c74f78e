"""Packed rows are tried without dropout, and leave a model in the mode that it was in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from emberge.encoding import packing_problem
from emberge_encoder import TextEncoder
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
        found = packing_problem(encoder)
        assert found == f"{kind} cannot compute packed texts: {words}; take packing out"
    monkeypatch.setattr(type(encoder), "states", _joined)
    assert packing_problem(encoder) == (
        f"{kind} computes texts of a packed row otherwise than single ones, as if they saw each other; "
        "take packing out"
    )


ROWS = ((range(1, 6), range(6, 9), range(9, 16)), (range(16, 22), range(22, 26)), (range(26, 34),))


def test_every_token_of_the_trial_may_differ_by_rounding_and_no_more(
    encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are the numbers of tokens, of which one is off by a part of what rounding explains."""
    off: list[tuple[int, int, float]] = []

    def states(self: Any, features: Mapping[str, Tensor]) -> Tensor:
        assert not torch.is_grad_enabled()
        found = features["input_ids"].float()[..., None]
        if len(found) == 3:
            tokens = [[one for text in row for one in text] for row in ROWS]
            padded = [[*row, *[found[1, -1, 0]] * (15 - len(row))] for row in tokens]
            assert torch.equal(found[..., 0], torch.tensor(padded))
            for row, place, much in off:
                found[row, place] += much
        return found

    monkeypatch.setattr(type(encoder), "states", states)
    assert packing_problem(encoder) == ""
    for row, texts in enumerate(ROWS):
        for text in texts:
            allowed = 2.0**-11.5 * max(text)
            for token in (text[0], text[-1]):
                place = token - texts[0][0]
                off[:] = [(row, place, 0.9 * allowed)]
                assert packing_problem(encoder) == ""
                off[:] = [(row, place, -1.1 * allowed)]
                assert packing_problem(encoder) != ""
        off[:] = [(row, sum(map(len, texts)), 9.0)] if row else []
        assert packing_problem(encoder) == "", "padding does not count"
