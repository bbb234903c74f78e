"""Matching of embedding rows by token: by the tokens' ids, or by their texts.

By ids (`token_aware`), no id changes: rows whose token is the same in all models are merged, a token that
some models lack takes its row from the models that have it, and two different tokens with one id are refused.
By texts (`union`), rows are found by token, and tokens that the chosen tokenizer lacks are appended.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge.errors import EmbergeError, Problem
from emberge.merging.request import VocabularyPolicy
from emberge.merging.tokens.token_plan import NO_ROW, NewToken, TokenModel, TokenPlan
from emberge.merging.tokens.tokenizer import Tokenizer, assign_token_ids, quote_token
from emberge.model_folder import Checkpoint
from emberge.tensor_names import TensorNames
from emberge.wording import count_noun, join_some

CLASH_REMEDY = (
    "merge by token with vocabulary: union, or name the tokenizer to keep with 'tokenizer'"
)
"""Remedies in a merge if two tokens have one id."""


@dataclass
class _TokenAligner:
    """Base class of matching by ids or by texts: models, new and missing tokens, and the number of rows."""

    output_tokenizer: Tokenizer
    models: Sequence[TokenModel]
    base: TokenModel | None
    template: TokenModel
    policy: VocabularyPolicy
    chosen_by_name: bool = False
    remedy: str = CLASH_REMEDY

    def __post_init__(self) -> None:
        self.new_tokens: list[NewToken] = []
        self.missing_tokens: list[str] = []

    def plan(self) -> TokenPlan:
        """Return the plan, which may have problems."""
        raise NotImplementedError

    def map_rows(self, model: TokenModel, token_by_id: Mapping[int, str], rows: int) -> array[int]:
        """Return the model's row for each row of the result."""
        raise NotImplementedError

    def build_plan(self, token_by_id: Mapping[int, str], rows: int) -> TokenPlan:
        """Return the plan, given the token of each id and the number of rows."""
        all_models = [*self.models, *([self.base] if self.base is not None else [])]
        maps = {known.name: self.map_rows(known, token_by_id, rows) for known in all_models}
        lacking_rows = [
            {row for row, model_row in enumerate(maps[model.name]) if model_row == NO_ROW}
            for model in self.models
        ]
        partial, absent = set[int]().union(*lacking_rows), set[int].intersection(*lacking_rows)
        return TokenPlan(
            self.output_tokenizer,
            rows,
            maps,
            self.map_rows(self.template, token_by_id, rows),
            tuple(self.new_tokens),
            warnings=(*self._warn_of_lacking(), *self._warn_of_partial(len(partial - absent))),
            summary=self._summarise_rows(rows, len(partial), len(absent)),
        )

    def refuse(self, problems: Sequence[str]) -> TokenPlan:
        """Return a plan that only reports problems."""
        return TokenPlan(self.output_tokenizer, problems=tuple(map(Problem, problems)))

    def describe_id_problems(self) -> Iterator[str]:
        """Yield the problems of new tokens in a tokenizer that numbers its tokens by position."""
        if self.output_tokenizer.is_complete and self.output_tokenizer.algorithm != "Unigram":
            return
        first, is_whole = self.output_tokenizer.base_size, self.output_tokenizer.is_complete
        vocabulary = {t: i for t, i in self.output_tokenizer.tokens.items() if i < first}
        vocabulary |= {
            t.text: t.id
            for t in self.new_tokens
            if not is_whole or t.text not in t.owner.added_entries
        }
        added = {t: i for t, i in self.output_tokenizer.tokens.items() if i >= first}
        added |= {t.text: t.id for t in self.new_tokens if t.text not in vocabulary}
        added_by_id = dict(sorted(added.items(), key=lambda item: item[1]))
        is_gapless = sorted(set(vocabulary.values())) == list(
            range(max(vocabulary.values(), default=-1) + 1)
        )
        if not is_gapless or assign_token_ids(vocabulary, added_by_id) != added_by_id:
            yield (
                f"vocabulary: '{self.output_tokenizer.folder.name}' numbers its tokens by their places, and "
                "those of other models do not fit behind them; merge models that share a tokenizer, or name "
                "the one to keep with 'tokenizer'"
            )

    def _warn_of_lacking(self) -> tuple[str, ...]:
        if not self.missing_tokens:
            return ()
        token_list = join_some(quote_token(token) for token in self.missing_tokens)
        return (f"no model has a row for the tokens {token_list}; nothing is done about them",)

    def _warn_of_partial(self, count: int) -> Iterator[str]:
        """Yield a line if some models lack `count` rows, and nobody chose a vocabulary."""
        if count and self.policy.policy == "token_aware" and not self.chosen_by_name:
            rows = (
                "1 row of the vocabulary is"
                if count == 1
                else f"{count:,} rows of the vocabulary are"
            )
            yield f"the tokenizers differ: {rows} only from the models that have the token"

    def _summarise_rows(self, rows: int, partial: int, absent: int) -> str:
        """Return a line for the terminal: how many rows come from all models, from some and from none."""
        new_count = len(self.new_tokens)
        placement = f"{count_noun(new_count, 'token')} {'is' if new_count == 1 else 'are'}"
        return (
            f"{rows} rows: {rows - partial} merged, {partial - absent} from the models that "
            f"know them, {absent} of no token; {placement} put into the tokenizer"
        )


class ByIds(_TokenAligner):
    """`token_aware`: ids stay, and a row belongs to the models for which its id is the result's token."""

    def plan(self) -> TokenPlan:
        self.clashes: list[str] = []
        token_by_id = self._find_common_tokens()
        texts = [m.tokenizer.texts for m in self.models if m.tokenizer is not None]
        for token_id in sorted(set(self.output_tokenizer.texts).union(*texts) - token_by_id.keys()):
            token = self._choose_token(token_id)
            if token is not None:
                token_by_id[token_id] = token
        self._refuse_twins(token_by_id)
        if not self.clashes and self.new_tokens and (problems := list(self.describe_id_problems())):
            return self.refuse(problems)
        if not self.clashes:
            return self.build_plan(token_by_id, self._count_rows(token_by_id))
        return self.refuse([f"{join_some(self.clashes, 1)}; {self.remedy}"])

    def _find_common_tokens(self) -> dict[int, str]:
        """Map each id that means the same token in all models to that token."""
        row_counts = [
            m.rows if m.rows is not None else self.output_tokenizer.size for m in self.models
        ]
        rows = max(row_counts)
        common = {
            token_id: token
            for token_id, token in self.output_tokenizer.texts.items()
            if token_id < rows
        }
        for tokens in (m.tokenizer for m in self.models):
            if tokens is not None:
                get_text = tokens.texts.get
                common = {
                    token_id: token
                    for token_id, token in common.items()
                    if get_text(token_id) == token
                }
        return common

    def _choose_token(self, token_id: int) -> str | None:
        """Return the token of an id in the result, or None; collect clashes and new tokens."""
        chosen_token = self.output_tokenizer.texts.get(token_id)
        token_by_model = {
            m.name: m.tokenizer.texts[token_id]
            for m in self.models
            if m.tokenizer is not None and token_id in m.tokenizer.texts
        }
        if (
            self.chosen_by_name
            or not token_by_model
            or set(token_by_model.values()) == {chosen_token}
        ):
            return self._note_lacking(chosen_token, token_id)
        if chosen_token is None and len(set(token_by_model.values())) == 1:
            return self._add_token(token_id, next(iter(token_by_model)))
        self.clashes.append(self._explain_clash(token_id, chosen_token, token_by_model))
        return None

    def _note_lacking(self, token: str | None, token_id: int) -> str | None:
        if token is not None and not self._has_row(token, token_id):
            self.missing_tokens.append(token)
        return token

    def _has_row(self, token: str, token_id: int) -> bool:
        """Return whether any model has this token at this id, with a row of the embedding."""
        return any(m.has(token, token_id) for m in self.models)

    def _add_token(self, token_id: int, name: str) -> str | None:
        """Add the token of an id that the result's tokenizer lacks, and return it; None if that fails."""
        owner = next(m.tokenizer for m in self.models if m.name == name)
        assert owner is not None
        token = owner.texts[token_id]
        if token in self.output_tokenizer.tokens:
            self._note_twin(token, self.output_tokenizer.tokens[token], token_id)
            return None
        if not self._has_row(token, token_id):
            self.missing_tokens.append(token)
            return None
        self.new_tokens.append(NewToken(token, token_id, owner))
        return token

    def _explain_clash(
        self, token_id: int, own_token: str | None, token_by_model: Mapping[str, str]
    ) -> str:
        sides = list(token_by_model.items())
        first = (
            (self.output_tokenizer.folder.name, own_token) if own_token is not None else sides[0]
        )
        other = next((name, token) for name, token in sides if token != first[1])
        return (
            f"'{first[0]}' and '{other[0]}' have different tokenizers: id {token_id} is "
            f"{quote_token(first[1])} in one and {quote_token(other[1])} in the other"
        )

    def _refuse_twins(self, token_by_id: Mapping[int, str]) -> None:
        """Record a clash for each token that has two ids."""
        id_by_token: dict[str, int] = {}
        for token_id, token in token_by_id.items():
            if id_by_token.setdefault(token, token_id) != token_id:
                self._note_twin(token, id_by_token[token], token_id)

    def _note_twin(self, token: str, first: int, second: int) -> None:
        clash = f"the models have different tokenizers: {quote_token(token)} is id {first} in one"
        self.clashes.append(f"{clash} and {second} in the other")

    def _count_rows(self, token_by_id: Mapping[int, str]) -> int:
        used_ids = (
            p for p in sorted(token_by_id, reverse=True) if self._has_row(token_by_id[p], p)
        )
        needed_rows = next(used_ids, -1) + 1
        rows = self.template.rows if self.template.rows is not None else needed_rows
        # A vocabulary that was padded stays so.
        step = 64 if rows % 64 == 0 else 1
        return rows if needed_rows <= rows else -(-needed_rows // step) * step

    def map_rows(self, model: TokenModel, token_by_id: Mapping[int, str], rows: int) -> array[int]:
        row_count = rows if model.rows is None else min(rows, model.rows)
        row_map = array("q", range(row_count)) + array("q", [NO_ROW]) * (rows - row_count)
        texts = model.tokenizer.texts if model.tokenizer is not None else token_by_id
        for row, token in token_by_id.items():
            if texts.get(row) != token and row < row_count:
                row_map[row] = NO_ROW
        return row_map


class ByTexts(_TokenAligner):
    """`union`: rows go by the tokens' text, and tokens that the chosen tokenizer lacks are appended."""

    def plan(self) -> TokenPlan:
        problems = list(self._check_algorithms())
        token_by_id = dict(self.output_tokenizer.texts)
        for model in self.models if not problems else ():
            self._append_tokens(model, token_by_id)
        if problems or (problems := list(self.describe_id_problems())):
            return self.refuse(problems)
        step = self.policy.pad_to
        return self.build_plan(token_by_id, -(-(max(token_by_id, default=0) + 1) // step) * step)

    def _check_algorithms(self) -> Iterator[str]:
        for model in self.models:
            if model.tokenizer is None:
                continue
            if model.tokenizer.algorithm != self.output_tokenizer.algorithm:
                yield (
                    f"vocabulary: union needs one algorithm, and '{self.output_tokenizer.folder.name}' has "
                    f"{self.output_tokenizer.algorithm} and '{model.name}' {model.tokenizer.algorithm}"
                )
            elif model.tokenizer.settings != self.output_tokenizer.settings:
                yield (
                    f"vocabulary: '{model.name}' cuts text otherwise than "
                    f"'{self.output_tokenizer.folder.name}' (normalizer or pre_tokenizer), so one token is "
                    "not one text in both"
                )

    def _append_tokens(self, model: TokenModel, token_by_id: dict[int, str]) -> None:
        """Append the tokens that the result still lacks, with ids after all other ids."""
        if model.tokenizer is None:
            return
        next_id = max(token_by_id, default=-1) + 1
        tokens = model.tokenizer.tokens
        for model_id, token in sorted(
            (tokens[t], t) for t in tokens.keys() - set(token_by_id.values())
        ):
            if not model.has(token, model_id):
                self.missing_tokens.append(token)
                continue
            self.new_tokens.append(NewToken(token, next_id, model.tokenizer))
            token_by_id[next_id] = token
            next_id += 1

    def map_rows(self, model: TokenModel, token_by_id: Mapping[int, str], rows: int) -> array[int]:
        tokens = model.tokenizer if model.tokenizer is not None else self.output_tokenizer
        row_map = array("q", [NO_ROW]) * rows
        for row, token in token_by_id.items():
            model_row = tokens.tokens.get(token, NO_ROW)
            if model.rows is None or model_row < model.rows:
                row_map[row] = model_row
        return row_map


def align_tokens(
    policy: VocabularyPolicy,
    template: Checkpoint,
    checkpoints: Mapping[str, Checkpoint],
    names_by_model: Mapping[str, TensorNames],
    template_names: TensorNames | None = None,
    *,
    models: Sequence[str],
    base: str | None = None,
    tokenizer: Path | None = None,
    remedy: str = CLASH_REMEDY,
) -> TokenPlan:
    """Plan which row of each model's embedding becomes which row of the result.

    `models` and `base` are names; `checkpoints` contains the models that exist, `names_by_model` those with
    headers, and `template_names` the template's tensors; without tensors, rows are not counted. The result
    gets the tokenizer of the folder `tokenizer`, or of the template. `remedy` is the advice for two tokens
    with one id. Nothing is raised: errors are in the plan's `problems`.
    """
    tokenizers: dict[Path, Tokenizer | None] = {}

    def read(checkpoint: Checkpoint) -> Tokenizer | None:
        folder = checkpoint.tokenizer_folder
        if folder not in tokenizers:
            tokenizers[folder] = Tokenizer.read(checkpoint)
        return tokenizers[folder]

    def model(name: str) -> TokenModel:
        return TokenModel(
            name, read(checkpoints[name]), _count_embedding_rows(names_by_model.get(name))
        )

    try:
        output_tokenizer = read(Checkpoint(tokenizer) if tokenizer else template)
        if output_tokenizer is None or checkpoints.keys().isdisjoint(models):
            return TokenPlan(output_tokenizer)
        token_models = [model(name) for name in models if name in checkpoints]
        origin = model(base) if base is not None and base in checkpoints else None
        template_model = TokenModel("", read(template), _count_embedding_rows(template_names))
    except EmbergeError as error:
        return TokenPlan(problems=(Problem(str(error)),))
    all_models = [*token_models, *([origin] if origin is not None else [])]
    have_same_tokens = all(
        m.tokenizer is None or m.tokenizer.tokens == output_tokenizer.tokens for m in all_models
    )
    if have_same_tokens and len({m.rows for m in (*all_models, template_model)} - {None}) < 2:
        return TokenPlan(output_tokenizer)
    matcher = ByTexts if policy.policy == "union" and not have_same_tokens else ByIds
    by_token = matcher(
        output_tokenizer,
        token_models,
        origin,
        template_model,
        policy,
        tokenizer is not None,
        remedy,
    )
    return by_token.plan()


def _count_embedding_rows(names: TensorNames | None) -> int | None:
    embedding = names.find_embedding() if names is not None else None
    return embedding.shape[0] if embedding is not None else None
