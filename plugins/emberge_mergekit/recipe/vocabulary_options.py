"""Options of a vocabulary for several models, as the step and mergekit's tokenizer code read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from emberge import ModelRef, NumberRange, WholeNumber


@dataclass(frozen=True, kw_only=True)
class TokenRule:
    """Source of a token's embedding: a model's own, the embedding of another token of a model, or zeros.

    With `force` this embedding also replaces the embedding of models that have the token.
    """

    model: ModelRef | None = None
    """The model whose embedding is taken; without `token` and `token_id`, its embedding of the same token."""
    token: str | None = None
    token_id: WholeNumber | None = None
    zero: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.zero == (self.model is not None):
            raise ValueError("a rule has either a 'model' or 'zero: true'")
        if self.token is not None and self.token_id is not None:
            raise ValueError("a rule has 'token' or 'token_id', not both")
        if self.model is None and (self.token is not None or self.token_id is not None):
            raise ValueError("a 'token' or 'token_id' needs the 'model' that it is of")


@dataclass(frozen=True, kw_only=True)
class VocabularyOptions:
    """Models, the source of their tokens, and rules for single tokens."""

    models: tuple[ModelRef, ...]
    """Every model of the merge, its base too."""
    base: ModelRef | None = None
    """The model whose embedding is preferred if another model lacks a token."""
    source: Literal["union", "base"] | ModelRef | None = "union"
    """The tokens: those of all models, of the base, of one model; null keeps all embeddings as they are."""
    tokens: dict[str, TokenRule] = field(default_factory=dict)
    """Rules for single tokens; tokens that no tokenizer has are added."""
    pad_to_multiple_of: Annotated[int, NumberRange(least=1, most=2**20)] | None = None
    """The number of embeddings is raised to a multiple of this; those beyond the tokens are their mean."""
    chat_template: str | None = None
    """Name of a template of mergekit, a template as text, or `auto`: the template of most models."""
    dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("'models' is empty")
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError("'pad_to_multiple_of' must be at least 1")
