"""Every law of `check_backbone` finds a backbone that breaks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import EncoderFacts
from emberge.contracts import Embedded
from emberge.testing import check_backbone
from emberge_encoder import TextEncoder
from torch import Tensor

from tests.support.laws import find_broken_law


class _Faulty:
    """An encoder with one fault."""

    def __init__(self, encoder: Any, fault: str) -> None:
        self._encoder, self._fault = encoder, fault
        self.dimension = encoder.dimension + (fault == "dimension: ")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        embedded: Embedded = self._encoder(features, layers)
        vectors = embedded.embeddings
        changed = {
            "neighbours: ": lambda: vectors + vectors.mean(0),
            "gradients: none": lambda: vectors.detach().clone().requires_grad_(),
            "gradients: one is not": lambda: vectors + 0 * (vectors - vectors.detach()).sqrt(),
        }.get(self._fault, lambda: vectors)()
        return replace(embedded, embeddings=changed)

    def stored_names(self) -> Mapping[str, str]:
        names: Mapping[str, str] = self._encoder.stored_names()
        return {**names, **({"none": "none"} if self._fault == "stored_names: " else {})}

    def save(self, folder: Path) -> None:
        for parameter in self.module.parameters() if self._fault == "save: " else ():
            torch.nn.init.normal_(parameter)
        self._encoder.save(folder)


@dataclass(frozen=True, kw_only=True)
class _Broken(TextEncoder):
    """Break one law at a time."""

    fault: str = ""

    @property
    def kind(self) -> Any:
        return "sparse" if self.fault == "kind: " else "vector"

    def load(self, checkpoint: Path, **options: Any) -> Any:
        return _Faulty(super().load(checkpoint, **options), self.fault)

    def describe(self, checkpoint: Path, *, predicts_tokens: bool = False) -> EncoderFacts:
        facts = {
            "describe: it names": EncoderFacts(problems=("too old",)),
            "describe: dimension": EncoderFacts(dimension=3),
        }
        return facts.get(self.fault) or super().describe(checkpoint)


FAULTS = (
    *("kind: ", "dimension: ", "neighbours: ", "describe: it names", "describe: dimension"),
    *("stored_names: ", "gradients: none", "gradients: one is not", "save: "),
)


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_broken_law_is_named_and_a_sound_backbone_breaks_none(fault: str, bert: Path) -> None:
    law = find_broken_law(check_backbone, _Broken(fault=fault), bert)
    assert law.startswith(fault) if fault else law == ""
