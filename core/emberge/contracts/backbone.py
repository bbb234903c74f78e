"""Backbones, which make an encoder of a checkpoint, and encoders, which embed texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from emberge.contracts.media import Media, MediaFacts, MediaKind
from emberge.wording import join_some

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "Auxiliary",
    "AuxiliaryEncoder",
    "AuxiliaryMetrics",
    "Backbone",
    "Embedded",
    "Encoder",
    "EncoderFacts",
    "LocatedText",
    "PredictionFacts",
    "TokenEncoder",
    "TokenPredictor",
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

    def stored_names(self) -> Mapping[str, str]:
        """Return the name of every parameter of `module` with its tensor's name in a checkpoint.

        The trunk's may have any prefix; those of further modules begin with their folder (`2_Dense.`).
        Parameters of no stored tensor, such as those of an adapter, are left out.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write a SentenceTransformers folder that loads without remote code."""
        ...


@runtime_checkable
class TokenEncoder(Encoder, Protocol):
    """Encoder of which single tokens are known: their hidden states, and their places in the text.

    Measures of a text's tokens, and heads for words and answers need it.
    """

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the last hidden states [b, t, d] of a batch that is on the module's device.

        They are what pooling gets, one for each place of the padded batch.
        """
        ...

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

        Raises:
            CheckpointError: for a tokenizer that does not know the places of its tokens.
        """
        ...


@runtime_checkable
class TokenPredictor(TokenEncoder, Protocol):
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
        """Largest number of tokens of a text, special ones too; None without a limit."""
        ...

    def special(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask of the ids [t] that are special tokens, which a loss spares."""
        ...

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        """Head that makes logits [s, v] of hidden states [s, d]; best a `LinearHead`, if it is one."""
        ...

    def pack(self, rows: Sequence[Sequence[TokenisedText]]) -> Mapping[str, Tensor]:
        """Return one padded batch on the CPU, whose rows are texts one after another.

        `states` then gives each text's as if it were alone: texts of a row do not see each other, and
        positions begin at 0 in each. A training with `packing` tries that on a few texts first.

        Raises:
            NotImplementedError: for a model that cannot keep texts of a row apart.
        """
        ...


@runtime_checkable
class AuxiliaryEncoder(TokenEncoder, Protocol):
    """Encoder whose hidden states come with a loss term of its own: losses over tokens add that term."""

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        """Return the hidden states that `states` gives, and the model's own term of these texts."""
        ...


@dataclass(frozen=True, kw_only=True)
class PredictionFacts:
    """Reasons why an encoder cannot predict tokens, by the losses over tokens that they are against."""

    problems: tuple[str, ...] = ()
    """Reasons against every loss: a head is missing, or the options leave no room for one."""
    hidden: tuple[str, ...] = ()
    """Reasons against losses that predict hidden tokens: no mask token, attention to earlier tokens alone."""
    causal: tuple[str, ...] = ()
    """Reasons against losses that predict the next token: attention to later tokens."""
    bos: tuple[str, ...] = ()
    """Reasons against losses whose texts begin with a BOS token."""


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Facts of the encoder that a backbone makes of a checkpoint, known before its weights are loaded.

    They come from configs, the tokenizer and the headers of weights. With `problems` nothing else is known.
    """

    problems: tuple[str, ...] = ()
    """Reasons why it cannot be loaded."""
    training_problems: tuple[str, ...] = ()
    """Reasons why a training would harm the checkpoint."""
    prompt_problems: tuple[str, ...] = ()
    """Reasons why it cannot be trained on data that gives no text a prompt."""
    changes: tuple[str, ...] = ()
    """Changes to the way in which the checkpoint computes, as lines for the terminal."""
    dimension: int | None = None
    """Size of an embedding; None if unknown."""
    causal: bool | None = None
    """Flag that a token reads those before it alone; None if unknown."""
    media: tuple[MediaKind, ...] = ()
    """Kinds of media that it reads beside text."""
    prediction: PredictionFacts | None = None
    """Facts for losses over tokens, where they are asked for; None if it predicts no tokens."""


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Recipe for an encoder of a checkpoint: attention, pooling, prompts, adapters."""

    @property
    def leaves_adapter(self) -> bool:
        """Flag that its encoders save an adapter of the checkpoint, and no model by itself."""
        return False

    def describe(self, checkpoint: Path, *, predicts: bool = False) -> EncoderFacts:
        """Return the facts of the encoder that `load` would give; no weights are loaded.

        Those for losses over tokens, which take longer, are among them if it `predicts`.
        """
        return EncoderFacts()

    def check_media(self, checkpoint: Path, media: MediaFacts) -> list[str]:
        """Return reasons why it cannot read a data set's images and clips, from configs alone."""
        facts = self.describe(checkpoint)
        missing = [kind for kind in media.kinds if kind not in facts.media]
        if facts.problems or not missing:
            return []
        return [
            f"{media.where}: the data has {join_some(missing)}, and the model in {checkpoint} reads "
            f"{join_some(['text', *facts.media])} with {type(self).__name__}; take a model with such a tower "
            "and a backbone that reads it, or leave the data set out"
        ]

    def load(self, checkpoint: Path, *, device: str, dtype: str, predicts: bool = False) -> Encoder:
        """Load an encoder; `dtype` is "float32", "bfloat16" or "float16".

        With `predicts` it is a `TokenPredictor`, if the backbone has one.

        Raises:
            CheckpointError: when weights are missing or left over.
        """
        raise NotImplementedError
