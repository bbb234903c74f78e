"""Forward and backward passes of training: chunks of a batch, with a gradient cache.

A batch of texts is cut into chunks of like length. Each chunk runs by itself, its random numbers seeded by
its place; the loss sees all embeddings at once and gives back their gradients; each chunk then takes its
share through the model. A chunk whose activations do not fit in memory until then is run again (Gao et al.,
2021, arXiv:2101.06983). As every chunk sees the same texts, seed and order either way, keeping or
recomputing changes no bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import Auxiliary, AuxiliaryMetrics, Embedded, Encoder, TokenisedText
from emberge.encoding.chunks import chunks, padded_tokens
from emberge.encoding.kept_graphs import KeptGraphs
from emberge.encoding.prefetch import Features, Feed, feed, to_device
from emberge.ranks import ALONE, Ranks
from emberge.seeds import stable_seed

__all__ = [
    "BatchEmbeddings",
    "EncodePlan",
    "PassResult",
    "device_of",
    "draws_random_numbers",
    "embedded",
    "encode_and_backward",
    "forward",
]


@dataclass(frozen=True)
class EncodePlan:
    """Settings of a batch's passes: tokens of a chunk, activations kept, precision, random numbers, ranks.

    Activations are kept for `kept_tokens` tokens, or if that is None for as many as fit into `kept_bytes`;
    with neither all are: the plain pass. `autocast` is a dtype or None for the weights' own. `dropout`
    is whether a pass draws random numbers of any kind, which are then the same in both passes. With `sharded`
    the `ranks` have a share of the weights each, and run as many chunks at the same time. Texts of losses
    over tokens are packed into rows of `packing` tokens, unless that is None.
    """

    token_budget: int
    kept_tokens: int | None = None
    kept_bytes: int | None = None
    autocast: torch.dtype | None = None
    dropout: bool = True
    ranks: Ranks = ALONE
    sharded: bool = False
    packing: int | None = None


@dataclass(frozen=True, eq=False)
class BatchEmbeddings:
    """Embeddings of a batch's texts [n, d] as leaves of the loss's graph, with those of asked layers."""

    embeddings: Tensor
    layers: Mapping[float, Tensor] = field(default_factory=dict)

    @property
    def leaves(self) -> list[Tensor]:
        """Embeddings and those of layers: all tensors that the loss may send a gradient to."""
        return [self.embeddings, *self.layers.values()]


@dataclass(frozen=True)
class PassResult:
    """Loss and counts of tokens of a training pass on one rank.

    `loss` is its share of the batch's, detached and on the device; `tokens` are counted without padding and
    `padded` with it; of those, activations were kept for `kept`. `counts` are the model's own of the whole
    batch on all ranks, which `metrics` reads.
    """

    loss: Tensor
    tokens: int
    padded: int
    kept: int = 0
    counts: Tensor | None = None
    metrics: AuxiliaryMetrics | None = None

    def __add__(self, other: PassResult) -> PassResult:
        """Return both as one pass of a rank."""
        counts = [one.counts for one in (self, other) if one.counts is not None]
        return PassResult(
            self.loss + other.loss,
            self.tokens + other.tokens,
            self.padded + other.padded,
            self.kept + other.kept,
            torch.stack(counts).sum(0) if counts else None,
            other.metrics or self.metrics,
        )


def encode_and_backward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    objective: Callable[[BatchEmbeddings], Tensor],
    plan: EncodePlan,
    *,
    seed: int,
    layers: Sequence[float] = (),
    weight: float = 1.0,
) -> PassResult:
    """Embed a batch, take the loss of all embeddings, and add its gradients, times `weight`, to the model's.

    `objective` gets the embeddings in the order of `texts` and returns a scalar; anything else that it
    depends on (a learned temperature) gets its gradient from the same backward pass. A loss term of the
    model's own is added. The loss of the result has the weight, too.
    """
    lengths = np.fromiter((len(t.ids) for t in texts), np.int64, len(texts))
    pieces = chunks(lengths, plan.token_budget)
    # Ranks that share weights hand them round in every chunk, so all of them run equally many.
    idle = plan.ranks.largest(len(pieces)) - len(pieces) if plan.sharded else 0
    # A chunk that only keeps step with the others has any one text.
    run = [*pieces, *[np.zeros(1, np.int64)] * idle]
    with feed(encoder, texts, run) as given:
        runner = _Chunks(given, pieces, plan, seed, tuple(layers), idle, weight)
        first = runner.first()
        loss = objective(first.encoded) * weight
        loss.backward()  # type: ignore[no-untyped-call]
        loss = loss.detach() + runner.second(first)
    padded = padded_tokens(lengths, pieces)
    return PassResult(loss, int(lengths.sum()), padded, first.kept, first.counts, first.metrics)


@dataclass(eq=False)
class _First:
    """Result of the first pass: embeddings as leaves, the graphs that are kept, counts of the batch."""

    encoded: BatchEmbeddings
    graphs: list[_Output | None]
    counts: Tensor | None
    kept: int
    metrics: AuxiliaryMetrics | None = None


@dataclass(frozen=True, eq=False)
class _Output:
    """Outputs of a chunk: its embeddings and those of layers, and the model's own loss term."""

    values: list[Tensor]
    auxiliary: Auxiliary | None


@dataclass(frozen=True, eq=False)
class _Chunks:
    """A batch's chunks, and the two passes over them."""

    given: Feed
    pieces: Sequence[NDArray[np.int64]]
    plan: EncodePlan
    seed: int
    layers: tuple[float, ...]
    idle: int = 0
    weight: float = 1.0

    @property
    def encoder(self) -> Encoder:
        return self.given.encoder

    def first(self) -> _First:
        """Return all embeddings as leaves, and the graphs of the chunks that keep theirs."""
        device = device_of(self.encoder)
        room = KeptGraphs(self.encoder.module, self.plan.kept_tokens, self.plan.kept_bytes)
        kept = 0
        graphs: list[_Output | None] = []
        values: list[list[Tensor]] = []
        counts: list[Tensor] = []
        metrics: AuxiliaryMetrics | None = None
        for index in range(len(self.pieces) + self.idle):
            size = self._size(index)
            keep = self._agreed(room.has_room(size))
            with room.passing(size, keep):
                output = self._run(index)
            graphs.append(output if keep else None)
            if index < len(self.pieces):
                kept += size if keep else 0
                values.append([value.detach() for value in output.values])
                if output.auxiliary is not None:
                    counts.append(output.auxiliary.counts.detach())
                    metrics = output.auxiliary.metrics
        order = to_device(torch.from_numpy(np.argsort(np.concatenate(self.pieces))), device)
        leaves = [_widened(torch.cat(v)[order]).requires_grad_() for v in zip(*values, strict=True)]
        encoded = BatchEmbeddings(leaves[0], dict(zip(self.layers, leaves[1:], strict=True)))
        total = self.plan.ranks.total(torch.stack(counts).sum(0)) if counts else None
        return _First(encoded, graphs, total, kept, metrics)

    def _agreed(self, keep: bool) -> bool:
        """Return whether all ranks that run this chunk together keep its graph."""
        return not self.plan.ranks.any_of([not keep])[0] if self.plan.sharded else keep

    def _size(self, index: int) -> int:
        piece = self.given.pieces[index]
        return len(piece) * max(len(self.given.texts[i].ids) for i in piece)

    def second(self, first: _First) -> Tensor:
        """Send the gradients of the embeddings through the model, chunk by chunk in a fixed order.

        The model's own loss is added on the way, and returned.
        """
        own = first.encoded.embeddings.new_zeros(())
        for index in range(len(first.graphs)):
            output, first.graphs[index] = first.graphs[index], None
            if output is None:
                output = self._run(index)
            pairs = self._pulls(index, output, first.encoded)
            if output.auxiliary is not None and first.counts is not None:
                term = output.auxiliary.term(first.counts) * self.weight
                idle = index >= len(self.pieces)
                own = own + (0 if idle else term.detach())
                if term.requires_grad:
                    pairs.append((term, torch.full_like(term, 0.0 if idle else self._scale)))
            if pairs:
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return own

    def _pulls(
        self, index: int, output: _Output, encoded: BatchEmbeddings
    ) -> list[tuple[Tensor, Tensor]]:
        """Return a chunk's outputs, each with its gradient."""
        if index >= len(self.pieces):
            return [
                (value, torch.zeros_like(value)) for value in output.values if value.requires_grad
            ]
        rows = to_device(
            torch.from_numpy(np.ascontiguousarray(self.pieces[index])), device_of(self.encoder)
        )
        return [
            (value, _scaled(leaf.grad[rows].to(value.dtype), self._scale))
            for value, leaf in zip(output.values, encoded.leaves, strict=True)
            if leaf.grad is not None and value.requires_grad
        ]

    @property
    def _scale(self) -> float:
        # Shares of weights get the mean of the ranks' gradients, where their sum is meant.
        return self.plan.ranks.size if self.plan.sharded else 1.0

    def _run(self, index: int) -> _Output:
        # Seeding before every chunk instead of keeping generator states: both passes, and a run that was
        # killed and continued, draw the same numbers.
        if self.plan.dropout:
            torch.manual_seed(stable_seed(self.seed, index))
        out = embedded(self.encoder, self.given[index], self.layers, self.plan.autocast)
        values = [out.embeddings, *(out.layers[layer] for layer in self.layers)]
        return _Output(values, out.auxiliary)


def _widened(values: Tensor) -> Tensor:
    """Return half-precision embeddings in float32, and others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _scaled(pull: Tensor, scale: float) -> Tensor:
    return pull if scale == 1 else pull * scale


def forward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    """Embed one batch of texts on the encoder's device, and return the output with its graph."""
    device = device_of(encoder)
    features = {name: to_device(value, device) for name, value in encoder.collate(texts).items()}
    return embedded(encoder, features, layers, autocast)


def embedded(
    encoder: Encoder,
    features: Features,
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    """Embed features that are on the encoder's device, and return the output."""
    kind = device_of(encoder).type
    with torch.autocast(kind, dtype=autocast, enabled=autocast is not None):
        return encoder(features, layers)


def draws_random_numbers(encoder: Encoder, autocast: torch.dtype | None = None) -> bool:
    """Return whether a forward pass of the encoder, as it is set now, draws random numbers of any kind.

    One text is run, and the state of torch's generators compared: dropout, the jitter of a router and layers
    that are skipped at random have different names in every model.
    """
    device = device_of(encoder)
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus), torch.no_grad():
        before = _generator_states(gpus)
        forward(encoder, encoder.tokenise(["text"], prompt="", max_length=None), (), autocast)
        after = _generator_states(gpus)
    return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _generator_states(gpus: Sequence[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


def device_of(encoder: Encoder) -> torch.device:
    """Return the device of an encoder's weights."""
    return next(encoder.module.parameters()).device
