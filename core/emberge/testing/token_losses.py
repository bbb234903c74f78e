"""Laws of losses over tokens. A broken law raises an AssertionError with the law's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from emberge.contracts import TokenLoss, Tokens

VOCABULARY, WIDTH, MASK, UNSCORED = 50, 8, 4, -100


def check_token_loss(loss: TokenLoss) -> None:
    """Check a loss over tokens against the laws of training.

    A corruption is a pure function of text and seed, and another seed gives another corruption. It keeps the
    number of tokens, changes no token that must be spared, uses only ids of the vocabulary, and its labels
    are the text's ids. The corruption of a causal loss changes no token and does not score the first token.
    The loss is a finite scalar. It is a mean over scored places, so the losses of chunks, weighted by their
    number of scored places, add up to the loss of the whole. Places that are not scored get no gradient and
    do not matter, except a place before a scored one, which may predict it. Without a scored place the loss
    is 0 with a gradient of zero.

    Raises:
        AssertionError: if a law is broken; the message begins with its name.
    """
    generator = np.random.default_rng(0)
    texts = [
        Tokens(
            np.asarray([2, *generator.integers(5, VOCABULARY, size), 3]),
            np.asarray([True, *[False] * size, True]),
            MASK,
            VOCABULARY,
        )
        for size in (40, 23, 31)
    ]
    for text in texts:
        _check_corruption(loss, text)
    _TokenLossTrial(loss, texts).check()


def _check_corruption(loss: TokenLoss, text: Tokens) -> None:
    before = text.ids.copy()
    (ids, labels), (again, _), (other, _) = (loss.corrupt(text, seed) for seed in (1, 1, 2))
    assert np.array_equal(before, text.ids), "pure: it changes its input"
    assert np.array_equal(ids, again), "pure: one text and seed are corrupted in two ways"
    if loss.causal:
        assert np.array_equal(ids, text.ids), "causal: it hides or changes a token"
        assert labels[0] == UNSCORED, "causal: a first token is scored"
    else:
        assert not np.array_equal(ids, other), "seed: another one corrupts alike"
    assert ids.shape == labels.shape == text.ids.shape, "length: there are more or fewer ids"
    assert ids.dtype == labels.dtype == np.int64, "type: ids and labels are int64"
    assert (ids >= 0).all(), "vocabulary: an id is below 0"
    assert (ids < text.vocabulary).all(), "vocabulary: an id is outside"
    scored = labels != UNSCORED
    assert (labels[scored] == text.ids[scored]).all(), "labels: they are not the text's own ids"
    assert loss.causal or not scored[text.spared].any(), (
        "spared: a special token or a prompt's is scored"
    )
    assert (ids[~scored] == text.ids[~scored]).all(), "corruption: an unscored token is changed"


@dataclass(frozen=True, eq=False)
class _TokenLossTrial:
    """Loss and texts on which the laws are checked."""

    loss: TokenLoss
    texts: list[Tokens]

    def check(self) -> None:
        hidden, labels, head = self._make_batch()
        value, pull = self._compute_gradient(hidden, labels, head)
        assert value.ndim == 0, f"scalar: the loss has the shape {list(value.shape)}"
        assert torch.isfinite(value), "finite: the loss is not"
        assert torch.isfinite(pull).all(), "finite: the gradient is not"
        assert pull.any(), "finite: the loss has no gradient"
        self._check_unscored(hidden, labels, head)
        self._check_parts(hidden, labels, head)
        nothing, none = self._compute_gradient(hidden, torch.full_like(labels, UNSCORED), head)
        assert nothing == 0, "empty: without a scored place the loss is not 0"
        assert not none.any(), "empty: without a scored place there is a gradient"

    def _make_batch(self) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        longest = max(len(text.ids) for text in self.texts)
        labels = torch.full((len(self.texts), longest), UNSCORED)
        for row, text in enumerate(self.texts):
            labels[row, : len(text.ids)] = torch.from_numpy(self.loss.corrupt(text, 1)[1])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return (
                torch.randn(*labels.shape, WIDTH),
                labels,
                nn.Linear(WIDTH, VOCABULARY).requires_grad_(False),
            )

    def _compute_gradient(
        self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        hidden_leaf = hidden.clone().requires_grad_()
        value = self.loss(hidden_leaf, labels, head)
        (pull,) = torch.autograd.grad(value, hidden_leaf)
        return value.detach(), pull

    def _check_unscored(
        self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]
    ) -> None:
        scored = labels != UNSCORED
        is_relevant = scored.clone()
        is_relevant[:, :-1] |= scored[:, 1:]
        other = torch.where(is_relevant[..., None], hidden, torch.full_like(hidden, 7.0))
        (first, pull), (second, again) = (
            self._compute_gradient(states, labels, head) for states in (hidden, other)
        )
        assert torch.allclose(first, second), "unscored: what is not scored changes the loss"
        assert not pull[~is_relevant].any(), "unscored: a gradient reaches what is not scored"
        assert torch.allclose(pull, again), "unscored: what is not scored changes the gradient"

    def _check_parts(
        self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]
    ) -> None:
        whole = self.loss(hidden, labels, head)
        count = (labels != UNSCORED).sum(1)
        rows = [self.loss(hidden[i : i + 1], labels[i : i + 1], head) for i in range(len(labels))]
        mean = (torch.stack(rows) * count).sum() / count.sum()
        assert torch.allclose(whole, mean, rtol=1e-5), (
            f"parts: the mean of chunks by their scored places is {float(mean)}, not {float(whole)}"
        )
