"""Every law of `check_loss` finds a loss that breaks it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from emberge import Embeddings, Loss
from emberge.testing import check_loss
from torch import Tensor

from tests.support.laws import find_broken_law


def _kept(e: Embeddings) -> Tensor:
    """Cosines of anchors and positives [b, p], zero for padding."""
    valid = e.valid[:, : e.positive.shape[1]]
    return torch.cosine_similarity(e.anchor[:, None], e.positive, dim=-1).masked_fill(~valid, 0)


def _mean(e: Embeddings, values: Tensor) -> Tensor:
    return values.sum() / e.valid[:, : e.positive.shape[1]].sum()


def _origin(e: Embeddings) -> str:
    """Where the anchors come from: what no loss should look at."""
    node, names = e.anchor.grad_fn, list[str]()
    while node is not None:
        names.append(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    return "gathered" if "CatBackward0" in names else (names[1:2] or [""])[0]


CALLS: list[int] = []


@dataclass(frozen=True, kw_only=True)
class _Off(Loss):
    """Sound as it is; each fault breaks one law."""

    fault: str = ""

    def __call__(self, embeddings: Embeddings) -> Tensor:
        e, pull = embeddings, _kept(embeddings)
        plain = 1 - _mean(e, pull)
        return getattr(self, self._method, lambda *_: plain)(e, pull)  # type: ignore[no-any-return]

    @property
    def _method(self) -> str:
        return "_" + self.fault.replace(" ", "_")

    def _scalar(self, e: Embeddings, pull: Tensor) -> Tensor:
        return 1 - pull.sum(1)

    def _scalar_forgotten(self, e: Embeddings, pull: Tensor) -> Tensor:
        return None  # type: ignore[return-value]

    def _finite_nan(self, e: Embeddings, pull: Tensor) -> Tensor:
        return pull.mean() * torch.nan

    def _finite_constant(self, e: Embeddings, pull: Tensor) -> Tensor:
        return torch.tensor(1.0)

    def _finite_root(self, e: Embeddings, pull: Tensor) -> Tensor:
        return 1 - _mean(e, pull) + e.anchor.square().sum().sqrt() * 1e-9

    def _finite_spread(self, e: Embeddings, pull: Tensor) -> Tensor:
        return -_mean(e, pull) / e.anchor.std()  # of equal texts and of one row there is none

    def _pure(self, e: Embeddings, pull: Tensor) -> Tensor:
        return 1 - _mean(e, pull * (1 + torch.rand_like(pull)))

    def _pure_inputs(self, e: Embeddings, pull: Tensor) -> Tensor:
        e.positive.data[e.valid[:, : e.positive.shape[1]]] += 1e-3
        return 1 - _mean(e, pull) * 0

    def _order_of_rows(self, e: Embeddings, pull: Tensor) -> Tensor:
        return 1 - _mean(e, pull * torch.arange(len(pull))[:, None])

    def _order_of_rows_gradient(self, e: Embeddings, pull: Tensor) -> Tensor:
        first = pull[0].sum()
        return 1 - _mean(e, pull) + first - first.detach()

    def _padding(self, e: Embeddings, pull: Tensor) -> Tensor:
        return 1 - torch.cosine_similarity(e.anchor[:, None], e.positive, dim=-1).mean()

    def _padding_texts(self, e: Embeddings, pull: Tensor) -> Tensor:
        ids = e.text_id[:, 1 : 1 + e.positive.shape[1]].flatten()
        once = (ids[:, None] == ids[None]).sum(1).view(pull.shape) == 1
        return 1 - _mean(e, pull * once)

    def _padding_places(self, e: Embeddings, pull: Tensor) -> Tensor:
        return 1 - pull.mean()

    def _weight(self, e: Embeddings, pull: Tensor) -> Tensor:
        return self.weight * (1 - _mean(e, pull))

    def _lengths(self, e: Embeddings, pull: Tensor) -> Tensor:
        return -_mean(e, pull * e.anchor.norm(dim=1)[:, None])

    def _cache(self, e: Embeddings, pull: Tensor) -> Tensor:
        if _origin(e) == "ViewBackward0":  # in training only, and there every second time
            CALLS.append(len(CALLS) % 2)
        return -_mean(e, pull) * (1 + sum(CALLS[-1:]))

    def _ranks(self, e: Embeddings, pull: Tensor) -> Tensor:
        return -_mean(e, pull) * (2 if _origin(e) == "gathered" else 1)

    def _needs(self, e: Embeddings, pull: Tensor) -> Tensor:
        own = e.negative.shape[1] or e.in_batch
        return 1 - _mean(e, pull if own else pull * 0)

    def _one_row(self, e: Embeddings, pull: Tensor) -> Tensor:
        return -_mean(e, pull) * (len(pull) - 1) / (len(pull) - 1 or torch.nan)


FAULTS = sorted(
    name.removeprefix("_").replace("_", " ")
    for name, value in vars(_Off).items()
    if name.startswith("_") and not name.startswith("__") and callable(value) and name != "_one_row"
)
LAWS = (
    *("scalar", "finite", "pure", "order of rows", "padding"),
    *("weight", "lengths", "cache", "ranks", "needs"),
)


find_broken_loss_law = partial(find_broken_law, check_loss)


@pytest.mark.parametrize("cross_rank", [True, False])
def test_a_sound_loss_breaks_no_law(cross_rank: bool) -> None:
    assert find_broken_loss_law(_Off(cross_rank=cross_rank)) == ""


def test_every_law_has_a_loss_that_breaks_it() -> None:
    assert {law for law in LAWS if any(fault.startswith(law) for fault in FAULTS)} == set(LAWS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_law_is_named(fault: str) -> None:
    law = next(law for law in LAWS if fault.startswith(law))
    assert find_broken_loss_law(_Off(fault=fault)).startswith(f"{law}: ")


def test_a_loss_may_be_declared_to_differ() -> None:
    assert find_broken_loss_law(_Off(fault="lengths"), lengths=False) == ""
    assert re.match(r"finite: .* one row", find_broken_loss_law(_Off(fault="one row")))
    assert find_broken_loss_law(_Off(fault="one row"), one_row=False) == ""
