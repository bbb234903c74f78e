"""Backbones, which make an encoder of a checkpoint, and encoders, which embed texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from emberge.contracts.media import Media, MediaFacts

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "AddsAuxiliary",
    "Auxiliary",
    "AuxiliaryMetrics",
    "Backbone",
    "Embedded",
    "Encoder",
    "LocatedText",
    "LocatesTokens",
    "NamesWeights",
    "PacksTexts",
    "PredictsTokens",
    "ReadsTokens",
    "TokenisedText",
]


@dataclass(frozen=True, slots=True)
class TokenisedText:
    """Token ids of one text with its special tokens; the first `prompt_length` belong to the prompt.

    `types` are the kinds of a pair's tokens, where the model embeds them (BERT's segments). `media` are the
    images and clips in the order in which they come; their places are among the ids, each as often as the
    model has vectors of it.
    """

    ids: Sequence[int]
    prompt_length: int = 0
    types: Sequence[int] | None = None
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True)
class LocatedText:
    """Token ids of a text, a pair, or a window of a pair, with the place that each token came from.

    `row` numbers the text among those given. `part` [t] is 0 for a token of the text, 1 for one of its
    second text, and -1 for special tokens and the prompt's; `start` and `end` [t] count characters of it.
    """

    row: int
    tokens: TokenisedText
    part: Sequence[int]
    start: Sequence[int]
    end: Sequence[int]


class AuxiliaryMetrics:
    """Reading of a model's own counts for the user: numbers, warnings and figures.

    Counts are those of one batch or the sum of several. An object keeps no tensor of a pass alive.
    """

    def values(self, counts: Tensor) -> Mapping[str, float]:
        """Return numbers by name, which are logged and kept for `figures`; `counts` are on the CPU."""
        return {}

    def warnings(self, counts: Tensor) -> Sequence[str]:
        """Return what is wrong and what to do; the user gets the same words once."""
        return ()

    def figures(self, points: Sequence[tuple[int, Mapping[str, float]]]) -> list[dict[str, Any]]:
        """Return figures of the values over steps, as an artifact's `figures` has them."""
        return []


@dataclass(frozen=True, slots=True, eq=False)
class Auxiliary:
    """Loss term of the model's own that is no sum over texts, such as the balance of a router's experts.

    `counts` are what it needs of the whole batch (tokens, tokens an expert), without a gradient; those of
    chunks and ranks are added up. `term(counts)` is this chunk's part of the loss given the counts of the
    batch: parts add up to the whole, so it is linear in what has a gradient. `metrics` reads the same counts
    for the user.
    """

    counts: Tensor
    term: Callable[[Tensor], Tensor]
    metrics: AuxiliaryMetrics | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Output of a forward pass: embeddings [n, d], those of layers, and the model's own loss term."""

    embeddings: Tensor
    layers: Mapping[float, Tensor] = field(default_factory=dict)
    auxiliary: Auxiliary | None = None


class Encoder(Protocol):
    """Model that embeds texts. Only the `encoding` room calls it."""

    @property
    def module(self) -> torch.nn.Module:
        """Module with all weights: it is optimised, moved and saved."""
        ...

    @property
    def dimension(self) -> int:
        """Size of an embedding."""
        ...

    @property
    def tokenizer_fingerprint(self) -> str:
        """Hash of all that turns text into ids, for token caches."""
        ...

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the model wants before its inputs by name, such as "query" and "document"."""
        ...

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        """Return ids of each text with the prompt before it, cut to `max_length` or the model's own limit."""
        ...

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        """Return one padded batch on the CPU, with the masks that the model needs."""
        ...

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        """Embed one batch that is on the module's device."""
        ...

    def save(self, folder: Path) -> None:
        """Write a SentenceTransformers folder that loads without remote code."""
        ...


@runtime_checkable
class NamesWeights(Protocol):
    """Encoder that names its weights as they are on disk: statistics of a model need it."""

    def stored_names(self) -> Mapping[str, str]:
        """Return the name of every parameter of `module` with its tensor's name in a checkpoint.

        The trunk's may have any prefix; those of further modules begin with their folder (`2_Dense.`).
        """
        ...


@runtime_checkable
class ReadsTokens(Protocol):
    """Encoder that gives the hidden states of single tokens: measures of a text's tokens need it."""

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the last hidden states [b, t, d] of a batch that is on the module's device.

        They are what pooling gets, one for each place of the padded batch.
        """
        ...


@runtime_checkable
class LocatesTokens(Encoder, ReadsTokens, Protocol):
    """Encoder that knows where tokens are in their texts: heads for words and answers need it."""

    def locate(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        prompt: str = "",
        max_length: int | None = None,
        stride: int | None = None,
    ) -> list[LocatedText]:
        """Return each text, or pair with one of `seconds`, cut to `max_length` or the model's own limit.

        With a `stride` long second texts become several windows, which share so many tokens, and at most a
        quarter of a window; a first text has half of it at most.
        """
        ...


@runtime_checkable
class PredictsTokens(Encoder, ReadsTokens, Protocol):
    """Encoder with a head that predicts tokens from their states: losses over tokens need it.

    `Backbone.load(…, predicts=True)` gives one. The head's weights are part of its `module`, and features
    have `input_ids` and, where texts are padded, an `attention_mask`.
    """

    @property
    def mask_id(self) -> int | None:
        """Id of the token that hides another one; None if the tokenizer has no such token."""
        ...

    @property
    def bos_id(self) -> int | None:
        """Id of the token that begins a text; None if the tokenizer has no such token."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of ids that a text may have; the head may give logits of more."""
        ...

    @property
    def max_length(self) -> int | None:
        """Tokens of a text at most, special ones too; None without a limit."""
        ...

    def special(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask of the ids [t] that are special tokens, which a loss spares."""
        ...

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        """Head that makes logits [s, v] of hidden states [s, d]; best a `LinearHead`, if it is one."""
        ...


@runtime_checkable
class PacksTexts(PredictsTokens, Protocol):
    """Encoder that computes several texts in one row of tokens: packed batches need it."""

    def pack(self, rows: Sequence[Sequence[TokenisedText]]) -> Mapping[str, Tensor]:
        """Return one padded batch on the CPU, whose rows are texts one after another.

        `states` then gives each text's as if it were alone: texts of a row do not see each other, and
        positions begin anew with each.
        """
        ...


@runtime_checkable
class AddsAuxiliary(ReadsTokens, Protocol):
    """Encoder whose hidden states come with a loss term of its own: losses over tokens add that term."""

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        """Return the hidden states that `states` gives, and the model's own term of these texts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Recipe for an encoder of a checkpoint: attention, pooling, prompts, adapters."""

    @property
    def leaves_adapter(self) -> bool:
        """Flag that its encoders save an adapter of the checkpoint, and no model by itself."""
        return False

    def check(self, checkpoint: Path) -> list[str]:
        """Return reasons why this backbone cannot load that checkpoint, from configs alone."""
        return []

    def check_without_prompts(self, checkpoint: Path) -> list[str]:
        """Return reasons why it cannot be trained on data that gives no text a prompt."""
        return []

    def check_predicts(
        self, checkpoint: Path, *, causal: bool = False, bos: bool = False
    ) -> list[str]:
        """Return reasons why no encoder of that checkpoint can predict tokens, from configs and headers.

        They are hidden ones, which takes a mask token and attention to both sides, or with `causal` all of
        them, from those before each; `bos` takes a token for texts to begin with.
        """
        return [f"{type(self).__name__} predicts no tokens; choose a backbone that does"]

    def check_media(self, checkpoint: Path, media: MediaFacts) -> list[str]:
        """Return reasons why it cannot read a data set's images and clips, from configs alone."""
        return [
            f"{media.where}: the data has {' and '.join(media.kinds)}, and {type(self).__name__} reads text "
            "alone; choose a backbone that reads them, or leave the data set out"
        ]

    def check_training(self, checkpoint: Path) -> list[str]:
        """Return reasons why a training with this backbone would harm that checkpoint, from configs alone."""
        return []

    def not_native(self, checkpoint: Path) -> list[str]:
        """Return what it changes in the way in which that checkpoint computes, as lines for the terminal.

        Raises:
            CheckpointError: where `check` names a problem.
        """
        return []

    def causal(self, checkpoint: Path) -> bool | None:
        """Return whether tokens read those before them alone, from configs alone; None if unknown.

        Raises:
            CheckpointError: where `check` names a problem.
        """
        return None

    def dimension(self, checkpoint: Path) -> int | None:
        """Return the size of the embeddings that `load` would give, from configs alone; None if unknown.

        Raises:
            CheckpointError: where `check` names a problem.
        """
        return None

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Encoder:
        """Load an encoder; `dtype` is "float32", "bfloat16" or "float16".

        With `predicts` it is a `PredictsTokens`; a backbone without such leaves the argument out.

        Raises:
            CheckpointError: when weights are missing or left over.
        """
        raise NotImplementedError

    def options(self) -> Mapping[str, Any]:
        """Return the options as plain values, for a model card."""
        return {}
