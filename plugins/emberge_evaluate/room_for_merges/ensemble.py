"""An encoder that runs several members and gives the mean of their embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Backbone, CheckpointError, Encoder, EncoderFacts, MediaFacts, TokenisedText
from emberge.contracts import Embedded

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ensemble(Backbone):
    """Mean of members' embeddings before they are scaled to length 1 (deep ensembles, arXiv:1612.01474).

    To first order it is what a merge of near models computes, so it shows the room that averaging has. All
    members read the first one's tokens.

    Example:
        Ensemble(of=backbone, members=(first, second))
    """

    of: Backbone
    """The backbone that loads each member."""
    members: tuple[Path, ...] = field(repr=False)
    """Whole models' folders; scores are kept by the members' content."""

    def describe(self, checkpoint: Path, *, predicts: bool = False) -> EncoderFacts:
        """Return the facts of one member; it predicts no tokens."""
        return self.of.describe(checkpoint)

    def check_media(self, checkpoint: Path, media: MediaFacts) -> list[str]:
        return self.of.check_media(checkpoint, media)

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Encoder:
        plain = self.of
        if any(option.name == "normalize" for option in dataclasses.fields(plain)):
            plain = dataclasses.replace(plain, **{"normalize": False})
        members = [plain.load(folder, device=device, dtype=dtype) for folder in self.members]
        for folder, member in zip(self.members, members, strict=True):
            if member.tokenizer_fingerprint != members[0].tokenizer_fingerprint:
                raise CheckpointError(
                    f"{folder}: has another tokenizer than {self.members[0].name}, and members of an "
                    "ensemble read the same tokens; leave it out of 'headroom'"
                )
            if member.dimension != members[0].dimension:
                raise CheckpointError(
                    f"{folder}: has embeddings of {member.dimension} numbers and {self.members[0].name} of "
                    f"{members[0].dimension}, which have no mean; leave it out of 'headroom'"
                )
        return _Members(members)


class _Members:
    """Encoder of several members, which embeds a batch with each of them in turn."""

    def __init__(self, members: Sequence[Encoder]) -> None:
        from torch import nn

        self._members = members
        self._modules = nn.ModuleList(member.module for member in members)

    @property
    def module(self) -> torch.nn.Module:
        return self._modules

    @property
    def dimension(self) -> int:
        return self._members[0].dimension

    @property
    def tokenizer_fingerprint(self) -> str:
        return self._members[0].tokenizer_fingerprint

    @property
    def prompts(self) -> Mapping[str, str]:
        return self._members[0].prompts

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        return self._members[0].tokenise(texts, prompt=prompt, max_length=max_length)

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        return self._members[0].collate(texts)

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        embeddings = self._members[0](features).embeddings
        for member in self._members[1:]:
            embeddings = embeddings + member(features).embeddings
        return Embedded(embeddings / len(self._members))

    def stored_names(self) -> Mapping[str, str]:
        return {}

    def save(self, folder: Path) -> None:
        raise CheckpointError(
            "an ensemble is several models and is saved as none; merge its members"
        )
