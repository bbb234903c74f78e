"""The `vocabulary` option of a merge: how tokens line up, or a vocabulary that a step made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from emberge import FileRef, ModelRef, suggest
from emberge.engine import MergeInput, SuppliedVocabulary, VocabularyPolicy

__all__ = ["made_vocabulary", "require_vocabulary", "token_policy"]

_POLICIES = ("token_aware", "mean", "union")


def require_vocabulary(vocabulary: VocabularyPolicy | FileRef | None) -> None:
    """Refuse a word that is no policy.

    Raises:
        ValueError: saying which there are.
    """
    if isinstance(vocabulary, FileRef) and not vocabulary.text.startswith(("$", ".", "/", "~")):
        raise ValueError(
            f"vocabulary '{vocabulary.text}' is none of {', '.join(_POLICIES)}, nor a step's"
            + suggest(vocabulary.text, _POLICIES)
        )


def made_vocabulary(vocabulary: VocabularyPolicy | FileRef | None) -> SuppliedVocabulary | None:
    """The place of a step's vocabulary, before it is made; None for a policy."""
    return SuppliedVocabulary() if isinstance(vocabulary, FileRef) else None


def token_policy(
    vocabulary: VocabularyPolicy | FileRef | None,
    references: Sequence[tuple[str | None, ModelRef]],
    inputs: Sequence[MergeInput],
) -> VocabularyPolicy:
    """The policy with models called as the merge calls them.

    A recipe may call them by the names that it gives them, or as it refers to them; `references` are both
    for each of the inputs.
    """
    if not isinstance(vocabulary, VocabularyPolicy):
        return VocabularyPolicy()
    called: dict[str, str] = {}
    for (name, reference), model in zip(references, inputs, strict=True):
        for word in (reference.text, reference.text.lstrip("./$"), model.name, name):
            called[str(word)] = model.name
    keep = {token: called.get(model, model) for token, model in vocabulary.keep.items()}
    return dataclasses.replace(vocabulary, keep=keep)
