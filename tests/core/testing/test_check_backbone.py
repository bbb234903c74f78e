"""The laws of backbones find states of tokens that break them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emberge import Backbone, EncoderFacts
from emberge.testing import check_backbone
from emberge_encoder import TextEncoder
from torch import Tensor

BROKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "one for each token": lambda states: states[:, :-1],
    "neighbours": lambda states: states + states.mean(0),
    "not finite": lambda states: states * float("inf"),
    "shape": lambda states: states.mean(1),
}


class Changed:
    """An encoder whose states are changed."""

    def __init__(self, encoder: Any, change: Callable[[Tensor], Tensor]) -> None:
        self._encoder, self._change = encoder, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def __call__(self, *given: Any) -> Any:
        return self._encoder(*given)

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._change(self._encoder.states(features))


@dataclass(frozen=True, kw_only=True)
class ChangedEncoder(Backbone):
    law: str

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Any:
        encoder = TextEncoder().load(checkpoint, device=device, dtype=dtype)
        return Changed(encoder, BROKEN[self.law])


@dataclass(frozen=True, kw_only=True)
class MisdescribedEncoder(TextEncoder):
    facts: EncoderFacts

    def describe(self, checkpoint: Path, *, predicts: bool = False) -> EncoderFacts:
        return self.facts


@pytest.mark.parametrize(
    "facts", [EncoderFacts(problems=("too old",)), EncoderFacts(dimension=3)], ids=repr
)
def test_facts_that_are_wrong_are_found(facts: EncoderFacts, bert: Path) -> None:
    with pytest.raises(AssertionError, match="describe: "):
        check_backbone(MisdescribedEncoder(facts=facts), bert)


@pytest.mark.parametrize("law", BROKEN)
def test_states_that_break_a_law_are_found(law: str, bert: Path) -> None:
    with pytest.raises(AssertionError, match=law):
        check_backbone(ChangedEncoder(law=law), bert)
