"""Which row of each model's embedding is which token of the result; loads no torch.

Models whose tokenizers agree need none of this.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.errors import EmbergeError, Problem, suggest
from emberge.merging.tokens.tokenizer import (
    Tokenizer,
    quoted,
    read_tokenizer,
    tokenizer_differences,
    tokenizer_folder,
)
from emberge.merging.tokens.vocabulary_policy import VocabularyPolicy
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_files import TOKENIZER_FILES

if TYPE_CHECKING:
    from emberge.merging.request import MergeRequest
    from emberge.model_folder.tensor_names import Names

__all__ = ["NOWHERE", "NewToken", "TokenModel", "TokenPlan", "align_tokens"]

NOWHERE = -1
"""The row of a token that a model has not."""


@dataclass(frozen=True)
class NewToken:
    """A token that the result's tokenizer gets from a model's; `id` is its id in the result."""

    text: str
    id: int
    owner: Tokenizer


@dataclass(frozen=True)
class TokenPlan:
    """How the tokens of models line up.

    `rows` is the number of rows in the result, None for the template's own; `maps` holds for every model
    and the base the row of each of the result's, -1 where it has none, and is empty where all rows stay;
    `pattern` is that of the template. `chosen` is the tokenizer that the result gets, with `new` put into
    it. `lines` tell what differs, for people.
    """

    chosen: Tokenizer | None = None
    rows: int | None = None
    maps: Mapping[str, array[int]] = field(default_factory=dict)
    pattern: array[int] | None = None
    new: tuple[NewToken, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what is read from where: another one, other bytes."""
        facts = hashlib.sha256(repr((self.rows, [(t.text, t.id) for t in self.new])).encode())
        for name in sorted(self.maps):
            facts.update(name.encode() + b"\x00" + self.maps[name].tobytes())
        return facts.hexdigest()


@dataclass(frozen=True)
class TokenModel:
    """A model's tokenizer and the number of rows of its embedding, where they can be seen."""

    name: str
    tokens: Tokenizer | None
    rows: int | None

    def has(self, token: str, place: int) -> bool:
        """Whether an id is this token here, with a row for it."""
        found = self.tokens is None or self.tokens.texts.get(place) == token
        return found and (self.rows is None or place < self.rows)


def align_tokens(
    request: MergeRequest,
    template: Checkpoint,
    checkpoints: Mapping[str, Checkpoint],
    names: Mapping[str, Names],
    pattern: Names | None = None,
) -> TokenPlan:
    """Line up the tokens of all models that could be looked at, as the request's policy says.

    `names` are the tensors of those whose headers are here, `pattern` the template's: without them rows
    are not counted. Nothing is raised: faults are the plan's `problems`.
    """
    try:
        place = Checkpoint(request.tokenizer) if request.tokenizer else template
        listed = [m.name for m in (*request.inputs, request.base) if m is not None]
        if request.vocabulary is not None or _same_bytes(place, map(checkpoints.get, listed)):
            return TokenPlan()
        found: dict[Path, Tokenizer | None] = {}

        def read(checkpoint: Checkpoint) -> Tokenizer | None:
            folder = tokenizer_folder(checkpoint)
            if folder not in found:
                found[folder] = read_tokenizer(checkpoint)
            return found[folder]

        known = {
            name: TokenModel(name, read(checkpoints[name]), _rows_of(names.get(name)))
            for name in listed
            if name in checkpoints
        }
        own = TokenModel("", read(template), _rows_of(pattern))
        return _line_up(request, read(place), own, known)
    except EmbergeError as error:
        return TokenPlan(problems=(Problem(str(error)),))


def _line_up(
    request: MergeRequest, chosen: Tokenizer | None, own: TokenModel, known: dict[str, TokenModel]
) -> TokenPlan:
    from emberge.merging.tokens.match_tokens import ByIds, ByTexts  # the two know each other

    if chosen is None:
        return TokenPlan()
    lines = tuple(_differences(chosen, known.values()))
    if all(_same(chosen, model.tokens) for model in known.values()):
        return TokenPlan(chosen, lines=lines)
    base = known.pop(request.base.name, None) if request.base is not None else None
    models = list(known.values())
    fault = _wrong_keepers(request.tokens, models)
    if fault:
        return TokenPlan(chosen, problems=(Problem(fault),), lines=lines)
    if request.part is not None or request.tokens.policy == "mean":
        return _as_they_are(request, chosen, models, lines)
    kind = ByTexts if request.tokens.policy == "union" else ByIds
    return kind(chosen, models, base, own, request).plan(lines)


def _same_bytes(place: Checkpoint, others: Iterable[Checkpoint | None]) -> bool:
    """Whether all models hold one tokenizer byte for byte, so that nothing need be read."""
    own = tokenizer_folder(place)
    return all(o is None or _all_same(own, tokenizer_folder(o), TOKENIZER_FILES) for o in others)


def _all_same(first: Path, second: Path, names: Sequence[str]) -> bool:
    for name in names:
        a, b = first / name, second / name
        if a.is_file() != b.is_file() or (a.is_file() and a.read_bytes() != b.read_bytes()):
            return False
    return True


def _rows_of(names: Names | None) -> int | None:
    embedding = names.embedding() if names is not None else None
    return embedding.shape[0] if embedding is not None else None


def _same(first: Tokenizer, second: Tokenizer | None) -> bool:
    return second is None or first.tokens == second.tokens


def _differences(chosen: Tokenizer, models: Iterable[TokenModel]) -> Iterator[str]:
    for model in models:
        if model.tokens is not None:
            found = tokenizer_differences(chosen, model.tokens)
            yield from (f"'{chosen.folder.name}' and '{model.name}': {one}" for one in found)


def _as_they_are(
    request: MergeRequest, chosen: Tokenizer, models: Sequence[TokenModel], lines: tuple[str, ...]
) -> TokenPlan:
    """Rows by id whatever they mean (`mean`), or a refusal, for slices."""
    apart = ", ".join(f"'{m.name}'" for m in models if not _same(chosen, m.tokens))
    if not apart:
        return TokenPlan(chosen, lines=lines)
    if request.part is None:
        said = f"{apart} and '{chosen.folder.name}' have different tokenizers, and rows are merged by id"
        return TokenPlan(chosen, warnings=(said,), lines=lines)
    fault = (
        f"'{chosen.folder.name}' and {apart} have different tokenizers; stack slices of models that share "
        "one"
    )
    return TokenPlan(chosen, problems=(Problem(fault),), lines=lines)


def _wrong_keepers(policy: VocabularyPolicy, models: Sequence[TokenModel]) -> str:
    names = [m.name for m in models]
    for token, name in policy.keep.items():
        keeper = next((m for m in models if m.name == name), None)
        if keeper is None:
            return f"vocabulary: '{name}', which keeps {quoted(token)}, is no model{suggest(name, names)}"
        if keeper.tokens is None or token not in keeper.tokens.tokens:
            return f"vocabulary: '{name}' has no token {quoted(token)} to keep"
    return ""
