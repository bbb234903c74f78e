"""The laws of backbones find descriptions that are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from emberge import EncoderFacts
from emberge.testing import check_backbone
from emberge_encoder import TextEncoder


@dataclass(frozen=True, kw_only=True)
class MisdescribedEncoder(TextEncoder):
    facts: EncoderFacts

    def describe(self, checkpoint: Path, *, predicts_tokens: bool = False) -> EncoderFacts:
        return self.facts


@pytest.mark.parametrize(
    "facts", [EncoderFacts(problems=("too old",)), EncoderFacts(dimension=3)], ids=repr
)
def test_a_wrong_description_is_found(facts: EncoderFacts, bert: Path) -> None:
    with pytest.raises(AssertionError, match="describe: "):
        check_backbone(MisdescribedEncoder(facts=facts), bert)
