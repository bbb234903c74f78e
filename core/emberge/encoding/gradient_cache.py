"""Gradient cache: the loss of a whole batch's embeddings, with few activations in memory.

A batch of texts is cut into chunks of similar length. Each chunk is encoded by itself. The loss is computed
on all embeddings at once, which gives their gradients; then the gradients of each chunk's embeddings are
propagated through the model. If a chunk's activations do not fit in memory until then, the chunk is first
encoded without gradients, and then again with them (Gao et al., 2021, arXiv:2101.06983).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import Encoder, TokenisedText
from emberge.encoding.chunk_runner import ChunkOutput, ChunkRunner, EncodePlan, PassResult
from emberge.encoding.chunks import (
    Features,
    count_padded_tokens,
    cut_chunks,
    prefetch_chunks,
    to_device,
)
from emberge.numerics import join_rows


@dataclass(frozen=True, eq=False)
class BatchEmbeddings:
    """Embeddings of a batch [n, *e], and of the layers that a loss needs, as leaves of the loss's graph."""

    embeddings: Tensor
    layers: Mapping[float, Tensor] = field(default_factory=dict)

    @property
    def leaves(self) -> list[Tensor]:
        """The embeddings, and those of the layers: all tensors to which the loss may give a gradient."""
        return [self.embeddings, *self.layers.values()]


def encode_and_backward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    compute_loss: Callable[[BatchEmbeddings], Tensor],
    encode_plan: EncodePlan,
    *,
    seed: int,
    layers: Sequence[float] = (),
    weight: float = 1.0,
) -> PassResult:
    """Embed a batch, compute its loss, and add the gradients, times `weight`, to the model's.

    `compute_loss` gets the embeddings in the order of `texts` and returns a scalar. A loss term of the
    model's own is added. The loss of the result has the weight, too.
    """
    lengths = np.fromiter((len(t.ids) for t in texts), np.int64, len(texts))
    pieces = cut_chunks(lengths, encode_plan.token_budget)
    # Ranks that share weights hand them round in every chunk, so all of them run equally many.
    most = encode_plan.ranks.find_largest(len(pieces)) if encode_plan.splits_weights else 0
    idle = max(0, most - len(pieces))

    def embed(features: Features) -> ChunkOutput:
        out = encoder(features, layers)
        return ChunkOutput(
            [out.embeddings, *(out.layers[layer] for layer in layers)], out.auxiliary
        )

    # A chunk that only keeps step with the others has any one text.
    with prefetch_chunks(
        encoder, texts, [*pieces, *[np.zeros(1, np.int64)] * idle]
    ) as chunk_features:
        runner = ChunkRunner(chunk_features, lengths, embed, encode_plan, seed, idle)
        values = [[v.detach() for v in out.values] for out in runner.run_first_pass()]
        encoded = _make_leaves(values, pieces, layers, chunk_features.device)
        counts = runner.sum_counts(texts_on_all_ranks=True)
        loss = compute_loss(encoded) * weight
        loss.backward()  # type: ignore[no-untyped-call]
        encoder_loss = _send_gradients(runner, encoded, counts, weight)
    padded = count_padded_tokens(lengths, pieces)
    return PassResult(
        loss.detach() + encoder_loss,
        int(lengths.sum()),
        padded,
        runner.kept_tokens,
        counts,
        runner.metrics,
    )


def _make_leaves(
    values: Sequence[Sequence[Tensor]],
    pieces: Sequence[NDArray[np.int64]],
    layers: Sequence[float],
    device: torch.device,
) -> BatchEmbeddings:
    """Return the chunks' embeddings in the order of their texts; half precision becomes float32."""
    order = to_device(torch.from_numpy(np.argsort(np.concatenate(pieces))), device)
    leaves = []
    for parts in zip(*values, strict=True):
        rows = join_rows(parts)[order]
        wide_dtype = torch.promote_types(rows.dtype, torch.float32)
        leaves.append(rows.to(wide_dtype).requires_grad_())
    return BatchEmbeddings(leaves[0], dict(zip(layers, leaves[1:], strict=True)))


def _send_gradients(
    runner: ChunkRunner, encoded: BatchEmbeddings, counts: Tensor | None, weight: float
) -> Tensor:
    """Propagate the embeddings' gradients through the model, chunk by chunk in a fixed order.

    The model's own loss is added in the process, and returned.
    """
    encode_plan = runner.encode_plan
    # Shares of weights get the mean of the ranks' gradients, where their sum is meant.
    scale = encode_plan.ranks.size if encode_plan.splits_weights else 1.0
    encoder_loss = encoded.embeddings.new_zeros(())
    for index in range(len(runner.features.pieces)):
        output = runner.pop_graph(index) or runner.run(index, runner.features[index])
        idle = index >= runner.first_idle
        gradient_pairs = (
            [(value, torch.zeros_like(value)) for value in output.values if value.requires_grad]
            if idle
            else _pair_gradients(output, encoded, runner.features.pieces[index], scale)
        )
        if output.auxiliary is not None and counts is not None:
            term = output.auxiliary.term(counts) * weight
            if not idle:
                encoder_loss = encoder_loss + term.detach()
            if term.requires_grad:
                gradient_pairs.append((term, torch.full_like(term, 0.0 if idle else scale)))
        if gradient_pairs:
            torch.autograd.backward([o for o, _ in gradient_pairs], [g for _, g in gradient_pairs])
    return encoder_loss


def _pair_gradients(
    output: ChunkOutput, encoded: BatchEmbeddings, piece: NDArray[np.int64], scale: float
) -> list[tuple[Tensor, Tensor]]:
    """Return a chunk's outputs, each paired with its rows of the batch's gradient."""
    device = encoded.embeddings.device
    rows = to_device(torch.from_numpy(np.ascontiguousarray(piece)), device)
    gradient_pairs = []
    for value, leaf in zip(output.values, encoded.leaves, strict=True):
        if leaf.grad is not None and value.requires_grad:
            row_gradient = leaf.grad[rows].to(value.dtype)
            if value.ndim > 2:  # the batch's longest text may be in another chunk
                row_gradient = row_gradient[:, : value.shape[1]]
            gradient_pairs.append((value, row_gradient if scale == 1 else row_gradient * scale))
    return gradient_pairs
