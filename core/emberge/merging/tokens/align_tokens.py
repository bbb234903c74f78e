"""Alignment of the tokens of models whose tokenizers differ; loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from emberge.errors import EmbergeError, Problem, suggest
from emberge.merging.tokens.match_tokens import REMEDY, ByIds, ByTexts
from emberge.merging.tokens.token_plan import TokenModel, TokenPlan
from emberge.merging.tokens.tokenizer import (
    Tokenizer,
    quoted,
    tokenizer_differences,
)
from emberge.merging.tokens.vocabulary import VocabularyPolicy
from emberge.model_folder import Checkpoint
from emberge.tensor_names import Names


def align_tokens(
    policy: VocabularyPolicy,
    template: Checkpoint,
    checkpoints: Mapping[str, Checkpoint],
    names: Mapping[str, Names],
    pattern: Names | None = None,
    *,
    models: Sequence[str],
    base: str | None = None,
    tokenizer: Path | None = None,
    sliced: bool = False,
    remedy: str = REMEDY,
) -> TokenPlan:
    """Plan which row of each model's embedding becomes which row of the result's.

    `models` and `base` are names; `checkpoints` has those that exist, `names` the tensors of those with
    headers, and `pattern` the template's: without them rows are not counted. The result gets the tokenizer
    of the folder `tokenizer`, or of the template. Slices need equal tokenizers. `remedy` is what to do about
    two tokens on one id. Nothing is raised: errors are the plan's `problems`.
    """
    found: dict[Path, Tokenizer | None] = {}

    def read(checkpoint: Checkpoint) -> Tokenizer | None:
        folder = checkpoint.tokenizer_folder
        if folder not in found:
            found[folder] = Tokenizer.read(checkpoint)
        return found[folder]

    def model(name: str) -> TokenModel:
        return TokenModel(name, read(checkpoints[name]), _rows_of(names.get(name)))

    try:
        chosen = read(Checkpoint(tokenizer) if tokenizer else template)
        if chosen is None:
            return TokenPlan()
        known = [model(name) for name in models if name in checkpoints]
        origin = model(base) if base is not None and base in checkpoints else None
        own = TokenModel("", read(template), _rows_of(pattern))
    except EmbergeError as error:
        return TokenPlan(problems=(Problem(str(error)),))
    kind = ByTexts if policy.policy == "union" else ByIds
    by_token = kind(chosen, known, origin, own, policy, tokenizer is not None, remedy)
    return _plan(by_token, sliced=sliced)


def _plan(by_token: ByTexts | ByIds, *, sliced: bool) -> TokenPlan:
    """Plan rows by number where all tokens are equal or the policy wants it, else by token."""
    chosen, policy, models = by_token.chosen, by_token.policy, by_token.models
    everyone = [*models, *([by_token.base] if by_token.base is not None else [])]
    lines = tuple(_differences(chosen, everyone))
    if all(_same(chosen, one.tokens) for one in everyone):
        return TokenPlan(chosen, lines=lines)
    fault = _wrong_keepers(policy, models)
    if fault:
        return TokenPlan(chosen, problems=(Problem(fault),), lines=lines)
    if sliced or policy.policy == "mean":
        return _by_number(chosen, models, lines, sliced=sliced)
    return by_token.plan(lines)


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


def _by_number(
    chosen: Tokenizer, models: Sequence[TokenModel], lines: tuple[str, ...], *, sliced: bool
) -> TokenPlan:
    """Plan rows by their number whatever their tokens are (`mean`), or refuse that for slices."""
    apart = ", ".join(f"'{m.name}'" for m in models if not _same(chosen, m.tokens))
    if not apart:
        return TokenPlan(chosen, lines=lines)
    if not sliced:
        warning = f"{apart} and '{chosen.folder.name}' have different tokenizers, and rows are merged by id"
        return TokenPlan(chosen, warnings=(warning,), lines=lines)
    fault = (
        f"'{chosen.folder.name}' and {apart} have different tokenizers; stack slices of models that share "
        "one"
    )
    return TokenPlan(chosen, problems=(Problem(fault),), lines=lines)


def _wrong_keepers(policy: VocabularyPolicy, models: Sequence[TokenModel]) -> str:
    """Return what is wrong with the models that a policy names as keepers of tokens, "" for nothing."""
    names = [m.name for m in models]
    for token, name in policy.keep.items():
        keeper = next((m for m in models if m.name == name), None)
        if keeper is None:
            return f"vocabulary: '{name}', which keeps {quoted(token)}, is no model{suggest(name, names)}"
        if keeper.tokens is None or token not in keeper.tokens.tokens:
            return f"vocabulary: '{name}' has no token {quoted(token)} to keep"
    return ""
