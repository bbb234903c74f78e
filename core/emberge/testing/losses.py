"""Laws of losses. A broken law raises an AssertionError with the law's name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import Embeddings, Loss, TokenisedText
from emberge.encoding import BatchEmbeddings, EncodePlan, encode_and_backward, forward
from emberge.numerics import join_rows
from emberge.testing.batches import (
    LetterEncoder,
    add_padding,
    change_embeddings,
    draw_embeddings,
    replace_columns,
    stack_columns,
    with_layers_and_guide,
)

OPTIONAL_COLUMNS = ("positive_score", "negative_score", "label")


def check_loss(
    loss: Loss, *, lengths: bool = True, one_row: bool = True, padding: bool = True
) -> None:
    """Check a loss against the laws of training, with and without other rows' texts as negatives.

    Always checked: the loss is a pure function with a finite value and finite gradients, also for zero
    vectors and equal texts. It needs no columns but those that it declares, and learns from rows that have
    these. The order of rows, and the content and number of places that `valid` masks, do not matter. The loss
    does not apply its own `weight`, as the runner does. Gradients through the gradient cache, in chunks of
    any size, equal those of one pass. A loss that gathers gives the same gradients with two ranks as with
    one.

    Checked unless switched off: the lengths of vectors do not matter (`lengths`), a batch of one row gives a
    finite loss (`one_row`), and rows may have different numbers of texts (`padding`).

    Raises:
        AssertionError: if a law is broken; the message begins with its name.
    """
    for batch in _list_batches(loss, padding):
        trial = _LossTrial(loss, batch)
        trial.check_pure()
        trial.check_finite(one_row)
        trial.check_order()
        if padding:
            trial.check_padding()
        trial.check_scale(lengths)
        trial.check_cache()
        trial.check_ranks()


def _list_batches(loss: Loss, padding: bool) -> Iterator[Embeddings]:
    """Yield batches of several forms, with those optional columns that the loss declares."""
    shapes = [(2, 2), (1, 3)] if "negative" in loss.needs else [(2, 2), (1, 0)]
    for kind, in_batch, (positives, negatives) in itertools.product(
        sorted(loss.kinds), (True, False), shapes
    ):
        if (not in_batch and not negatives and "contrast" in loss.needs) or (
            in_batch and kind == "pair_score"  # there, rows share no texts
        ):
            continue
        batch = draw_embeddings(
            positives=positives, negatives=negatives, in_batch=in_batch, kind=kind
        )
        if not padding:
            batch = dataclasses.replace(batch, valid=torch.ones_like(batch.valid))
        undeclared: dict[str, Any] = {n: None for n in OPTIONAL_COLUMNS if n not in loss.needs}
        yield with_layers_and_guide(loss, dataclasses.replace(batch, **undeclared))


def _is_close(first: Tensor, second: Tensor, tolerance: float = 2e-5) -> bool:
    scale = max(1e-3, float(first.abs().max()), float(second.abs().max()))
    return bool((first - second).abs().max() <= tolerance * scale)


@dataclass(frozen=True)
class _LossTrial:
    """Loss and batch on which the laws are checked."""

    loss: Loss
    batch: Embeddings

    def compute_gradient(self, batch: Embeddings) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient with respect to all embeddings (zero where there is none)."""
        embedding_leaf = stack_columns(batch).detach().requires_grad_()
        layers = {
            n: stack_columns(layer).detach().requires_grad_() for n, layer in batch.layers.items()
        }
        value = self.loss(replace_columns(batch, embedding_leaf, layers))
        assert value.ndim == 0, f"scalar: the loss has the shape {list(value.shape)}"
        assert value.requires_grad, "finite: the loss has no gradient at all"
        leaves = [embedding_leaf, *layers.values()]
        grads = torch.autograd.grad(value, leaves, allow_unused=True)
        gradients = [
            torch.zeros_like(leaf) if grad is None else grad
            for leaf, grad in zip(leaves, grads, strict=True)
        ]
        return value.detach(), torch.stack(gradients)

    def check_pure(self) -> None:
        before = stack_columns(self.batch).clone()
        state = torch.get_rng_state()
        first, second = (self.loss(self.batch) for _ in range(2))
        assert isinstance(first, Tensor), f"scalar: the loss must return a tensor, not {first!r}"
        assert first.isfinite().all(), f"finite: the loss is {first.tolist()}"
        assert torch.equal(first, second), "pure: two calls give different values"
        assert torch.equal(before, stack_columns(self.batch)), "pure: it changes its inputs"
        assert torch.equal(state, torch.get_rng_state()), "pure: it draws random numbers"

    def check_finite(self, one_row: bool) -> None:
        batch = self.batch
        equal = batch.anchor[0]
        batch_by_case = {
            "a plain batch": batch,
            "zero vectors": change_embeddings(batch, torch.zeros_like),
            "a row of zero vectors": change_embeddings(
                batch, lambda t: torch.cat([torch.zeros_like(t[:1]), t[1:]])
            ),
            "equal texts": dataclasses.replace(
                change_embeddings(batch, lambda t: t * 0 + equal),
                text_id=torch.zeros_like(batch.text_id),
            ),
            "long vectors": change_embeddings(batch, lambda t: t * 1e4),
        }
        if one_row:
            batch_by_case["one row"] = batch.take(slice(2, 3))
        for name, case in batch_by_case.items():
            value, grad = self.compute_gradient(case)
            assert torch.isfinite(value), f"finite: the loss is {float(value)} on {name}"
            assert torch.isfinite(grad).all(), f"finite: the gradient is not, on {name}"
            if name == "a plain batch" and not (grad.any() or self.loss.needs or batch.in_batch):
                _, contrasted = self.compute_gradient(dataclasses.replace(batch, in_batch=True))
                assert not contrasted.any(), (
                    "needs: rows without negatives teach it nothing, so `needs` must have contrast"
                )

    def check_order(self) -> None:
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        first, gradient = self.compute_gradient(self.batch)
        second, reordered = self.compute_gradient(self.batch.take(order))
        assert _is_close(first, second), (
            f"order of rows: it changes the loss from {float(first)} to {float(second)}"
        )
        assert _is_close(gradient[:, order], reordered), "order of rows: it changes the gradient"

    def check_padding(self) -> None:
        batch = self.batch
        is_padding = ~torch.cat(
            [torch.ones(len(batch.anchor), 1, dtype=torch.bool), batch.valid], 1
        )

        def fill(values: Tensor) -> Tensor:
            return values.masked_fill(self.expand_mask(is_padding), 7.0)

        layers = {n: fill(stack_columns(layer)) for n, layer in batch.layers.items()}
        other = replace_columns(batch, fill(stack_columns(batch)), layers)
        repeated_ids = torch.where(is_padding, batch.text_id.roll(1, 0), batch.text_id)
        first, gradient = self.compute_gradient(batch)
        refilled = dataclasses.replace(other, text_id=repeated_ids)
        second, other_gradient = self.compute_gradient(refilled)
        assert _is_close(first, second), "padding: its content changes the loss"
        assert not other_gradient[:, is_padding].any(), "padding: a gradient reaches it"
        assert _is_close(gradient, other_gradient), "padding: its content changes the gradient"
        wider_loss = self.loss(add_padding(batch))
        assert _is_close(first, wider_loss), "padding: the number of padded places changes the loss"

    def check_scale(self, lengths: bool) -> None:
        weighted_loss = dataclasses.replace(self.loss, weight=2 * self.loss.weight)
        first, second = self.loss(self.batch), weighted_loss(self.batch)
        assert _is_close(first, second), "weight: the runner applies it, not the loss"
        if lengths and self.batch.similarity.unit:
            scaled_batch = dataclasses.replace(
                change_embeddings(self.batch, lambda t: t * 0.25), anchor=self.batch.anchor * 3
            )
            assert _is_close(first, self.loss(scaled_batch)), "lengths: those of the vectors matter"

    def check_cache(self) -> None:
        for dropout in (False, True):
            # Random numbers are drawn by chunk, so both passes need the same chunks.
            whole = self.train(EncodePlan(10 if dropout else 10**6, None, draws_random=dropout))
            cached = self.train(EncodePlan(10, 0, draws_random=dropout))
            assert _is_close(whole, cached, 1e-5), (
                "cache: the gradient differs from that of one pass"
            )

    def check_ranks(self) -> None:
        if not self.loss.cross_rank:
            return
        plan = EncodePlan(10, 0, draws_random=False)
        shards = (slice(0, 2), slice(2, len(self.batch.anchor)))
        whole, *shares = (self.train(plan, shard) for shard in (None, *shards))
        assert _is_close(whole, shares[0] + shares[1]), "ranks: two give another gradient than one"

    def train(self, plan: EncodePlan, shard: slice | None = None) -> Tensor:
        """Return the gradient of an encoder's weights through the gradient cache.

        With a `shard` only the shard's rows are encoded. The other rows' embeddings are at their
        places without a gradient, as if another rank had computed them.
        """
        encoder = LetterEncoder(self.batch.similarity.kind).train(plan.draws_random)
        size = len(self.batch.anchor)
        rows = shard or slice(0, size)
        bounds = sorted({0, rows.start, rows.stop, size})
        parts = [slice(a, b) for a, b in pairwise(bounds)]
        with torch.no_grad():
            other_rows = {
                part.start: BatchEmbeddings(embedded.embeddings, embedded.layers)
                for part in parts
                if part != rows
                for embedded in [forward(encoder, self.make_texts(part), self.loss.layers)]
            }

        def compute_loss(encoded: BatchEmbeddings) -> Tensor:
            by_part = [other_rows.get(part.start, encoded) for part in parts]
            return self.loss(self.replace_embeddings(by_part))

        encode_and_backward(
            encoder, self.make_texts(rows), compute_loss, plan, seed=3, layers=self.loss.layers
        )
        gradient = encoder.letter_vectors.weight.grad
        assert gradient is not None, "cache: no gradient reaches the encoder"
        return gradient

    def make_texts(self, part: slice) -> list[TokenisedText]:
        """Return a different text for every place of some rows."""
        width = 1 + self.batch.valid.shape[1]
        return [
            TokenisedText([1 + (i * 7 + j * 3) % 63 for j in range(1 + i % 5)])
            for i in range(part.start * width, part.stop * width)
        ]

    def replace_embeddings(self, by_part: Sequence[BatchEmbeddings]) -> Embeddings:
        """Return the batch with an encoder's embeddings of `make_texts`, which are in parts."""

        def arrange(values: Sequence[Tensor]) -> Tensor:
            joined = join_rows(values) if len(values) > 1 else values[0]
            return joined.view(*self.batch.text_id.shape, *joined.shape[1:])

        layers = {n: arrange([part.layers[n] for part in by_part]) for n in self.loss.layers}
        return replace_columns(self.batch, arrange([part.embeddings for part in by_part]), layers)

    def expand_mask(self, mask: Tensor) -> Tensor:
        """Return a mask of texts [...] that is applied to their embeddings [..., *e]."""
        return mask.view(*mask.shape, *[1] * (self.batch.anchor.ndim - 1))
