"""Backbones, which load an encoder from a checkpoint, and encoders, which embed texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from emberge.contracts.details import Figure
from emberge.contracts.medium import DatasetMediaFacts, Media, MediaKind
from emberge.contracts.similarity import COSINE, EmbeddingKind, Similarity
from emberge.wording import join_some

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenisedText:
    """Token ids of one text with its special tokens; the first `prompt_length` belong to the prompt.

    `types` are the token type ids of a pair (BERT's segments), if the model embeds them. `media` are the
    images and clips of the text, in order; the ids contain one placeholder for each vector that the model
    computes from an image or clip. `is_query` marks a text that is read as a query, by an encoder that reads
    queries in another way than documents.
    """

    ids: Sequence[int]
    prompt_length: int = 0
    types: Sequence[int] | None = None
    media: tuple[Media, ...] = ()
    is_query: bool = False


class AuxiliaryMetrics:
    """Report of a loss term that the model adds: numbers to log, warnings, and figures for the artifact.

    All are computed from the counts of `Auxiliary`, of one batch or added up over several. The object must
    not keep tensors of a forward pass alive.
    """

    def values(self, counts: Tensor) -> Mapping[str, float]:
        """Return the numbers to log, by name, which are also kept for `figures`; `counts` are on the CPU."""
        return {}

    def warnings(self, counts: Tensor) -> Sequence[str]:
        """Return problems with their remedies; equal problems are shown once."""
        return ()

    def figures(self, points: Sequence[tuple[int, Mapping[str, float]]]) -> Sequence[Figure]:
        """Return figures for the training's artifact, which show the values over its steps."""
        return []


@dataclass(frozen=True, slots=True, eq=False)
class Auxiliary:
    """Loss term added by the model itself, not a sum over texts, such as a router's load balance.

    `counts` are sums over the whole batch that the term needs (tokens, tokens per expert), without a
    gradient; the runner adds up the counts of all chunks and ranks. `term(counts)` returns this chunk's part
    of the loss, given the counts of the whole batch. The parts add up to the whole term, so the term must be
    linear in the tensors that have a gradient. `metrics` turns the same counts into what the user sees.
    """

    counts: Tensor
    term: Callable[[Tensor], Tensor]
    metrics: AuxiliaryMetrics | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Output of a forward pass: embeddings [n, *e], embeddings of layers, and the model's loss term.

    An embedding has the shape that the encoder's `similarity` compares. Vectors of tokens [n, t, d] are zero
    at padding, and t is the largest number of tokens of the batch.
    """

    embeddings: Tensor
    layers: Mapping[float, Tensor] = field(default_factory=dict)
    auxiliary: Auxiliary | None = None


class Encoder(Protocol):
    """Model that embeds texts. Only the package `emberge.encoding` calls it."""

    @property
    def module(self) -> torch.nn.Module:
        """Module with all weights: it is optimised, moved and saved."""

    @property
    def dimension(self) -> int:
        """Size of an embedding, or of a token's vector."""

    @property
    def similarity(self) -> Similarity:
        """Comparison of two embeddings, which says what an embedding is."""

    @property
    def tokenizer_fingerprint(self) -> str:
        """Hash of the tokenizer and its settings; tokenizers with equal hashes give equal ids."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the model expects before its inputs, by name, such as "query" and "document"."""

    @property
    def reads_queries_apart(self) -> bool:
        """True if queries are read otherwise than documents: with more tokens, or by other weights."""

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None, queries: bool = False
    ) -> list[TokenisedText]:
        """Return the ids of each text after the prompt, truncated to `max_length` or the model's limit.

        With `queries` the texts are marked as queries, if the encoder reads these otherwise.
        """

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        """Return one padded batch on the CPU, with the masks that the model needs."""

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        """Embed one batch that is on the module's device."""

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the last hidden states [b, t, d] of a batch, one for each position, which pooling reads.

        Raises:
            CheckpointError: if the encoder has no hidden states of tokens.
        """

    def stored_names(self) -> Mapping[str, str]:
        """Map the name of each parameter of `module` to the name of its tensor in a checkpoint.

        The trunk's tensors may have any prefix. The tensors of further modules begin with the module's folder
        (`2_Dense.`). Parameters without a stored tensor, such as those of an adapter, are left out.
        """

    def save(self, folder: Path) -> None:
        """Write a SentenceTransformers folder that loads without remote code."""


@runtime_checkable
class PairEncoder(Encoder, Protocol):
    """Encoder of pairs, whose embedding of a query and a document is one number: how well they fit."""

    def tokenise_pairs(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        *,
        prompt: str,
        max_length: int | None,
    ) -> list[TokenisedText]:
        """Return the ids of each query after the prompt, together with its document."""


@runtime_checkable
class TokenPredictor(Encoder, Protocol):
    """Encoder with a head that predicts tokens from hidden states, as token losses need.

    `Backbone.load(…, predicts_tokens=True)` returns such an encoder. The head's weights are part of its
    `module`. The features contain `input_ids` and, if texts are padded, an `attention_mask`.
    """

    @property
    def mask_id(self) -> int | None:
        """Id of the mask token; None if the tokenizer has none."""

    @property
    def vocabulary(self) -> int:
        """Number of distinct ids in texts; the head may return logits of more ids."""

    @property
    def max_length(self) -> int | None:
        """Largest number of tokens of a text, special ones included; None without a limit."""

    def special(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask [t] of special tokens, which a loss does not corrupt."""

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        """Head that turns hidden states [s, d] into logits [s, v], ideally a `LinearHead`."""

    @property
    def has_auxiliary(self) -> bool:
        """True if the model has its own loss term for hidden states, which is added to token losses."""

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        """Return the hidden states, as `states` does, and the model's own loss term for these texts."""

    def pack(self, rows: Sequence[Sequence[TokenisedText]]) -> Mapping[str, Tensor]:
        """Return one padded batch on the CPU, whose rows each contain several texts one after another.

        `states` computes each text of a row as if it were alone: a text's tokens read no other text, and
        their positions begin at 0. A training with `packing` first tests this on a few texts.

        Raises:
            NotImplementedError: if the model cannot keep the texts of a row apart.
        """


@dataclass(frozen=True, kw_only=True)
class PredictionFacts:
    """Reasons why an encoder cannot predict tokens, by the kind of token loss they exclude."""

    problems: tuple[str, ...] = ()
    """Reasons that exclude every loss: no head, or options that allow none."""
    hidden: tuple[str, ...] = ()
    """Reasons that exclude losses which predict hidden tokens: no mask token, causal attention."""
    causal: tuple[str, ...] = ()
    """Reasons that exclude losses which predict the next token: attention to later tokens."""


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Facts of the encoder that a backbone would load from a checkpoint.

    The facts come from configs, the tokenizer and the headers of weights. If there are `problems`, the other
    facts are unknown.
    """

    problems: tuple[str, ...] = ()
    """Reasons why the encoder cannot be loaded."""
    training_problems: tuple[str, ...] = ()
    """Reasons why a training would harm the checkpoint."""
    untrained: tuple[str, ...] = ()
    """Modules of the encoder that the checkpoint lacks, so that `load` begins them with random weights."""
    changes: tuple[str, ...] = ()
    """Settings that differ from the checkpoint's own, such as its attention, as lines for the terminal."""
    warnings: tuple[str, ...] = ()
    """Reasons why embeddings are worse than a user may expect."""
    dimension: int | None = None
    """Size of an embedding, or of a token's vector; None if unknown."""
    similarity: Similarity = COSINE
    """Comparison of two embeddings, which says what an embedding is."""
    causal: bool | None = None
    """True if a token attends only to the tokens before it; None if unknown."""
    media: tuple[MediaKind, ...] = ()
    """Kinds of media that the encoder reads in addition to text."""
    prediction: PredictionFacts | None = None
    """Facts for losses over tokens; None if the encoder predicts no tokens, or without `predicts_tokens`."""


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Recipe for an encoder of a checkpoint: attention, pooling, prompts, adapters."""

    kind: ClassVar[EmbeddingKind] = "vector"
    """Kind of embedding of its encoders, which is known before there is a checkpoint."""

    @property
    def leaves_adapter(self) -> bool:
        """True if the backbone's encoders save an adapter of the checkpoint instead of a whole model."""
        return False

    def describe(self, checkpoint: Path, *, predicts_tokens: bool = False) -> EncoderFacts:
        """Return the facts of the encoder that `load` would return, without loading weights.

        With `predicts_tokens`, the facts include those for losses over tokens, which take longer.
        """
        return EncoderFacts()

    def check_media(self, checkpoint: Path, media: DatasetMediaFacts) -> list[str]:
        """Return reasons why the encoder cannot read a data set's images and clips, from configs alone."""
        facts = self.describe(checkpoint)
        missing = [kind for kind in media.kinds if kind not in facts.media]
        if facts.problems or not missing:
            return []
        return [
            f"{media.place}: the data has {join_some(missing)}, and the model in {checkpoint} reads "
            f"{join_some(['text', *facts.media])} with {type(self).__name__}; take a model with such a tower "
            "and a backbone that reads it, or leave the data set out"
        ]

    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts_tokens: bool = False
    ) -> Encoder:
        """Load and return an encoder; `dtype` is "float32", "bfloat16" or "float16".

        With `predicts_tokens`, the encoder is a `TokenPredictor`, if the backbone has one.

        Raises:
            CheckpointError: if weights are missing or unknown.
        """
        raise NotImplementedError
