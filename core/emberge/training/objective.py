"""Losses of a training: by dataset, with their learned parameters, and their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import AnyLoss, DatasetInfo, Embeddings, Loss, PerDataset, TokenLoss
from emberge.errors import DataError


class Objective:
    """Losses by dataset, with their learned parameters by name.

    Raises:
        DataError: if a dataset has no loss.
    """

    def __init__(
        self, losses: PerDataset[tuple[AnyLoss, ...]], infos: Sequence[DatasetInfo], device: str
    ) -> None:
        self._losses: dict[str, tuple[Loss, ...]] = {}
        self._token_losses: dict[str, tuple[TokenLoss, ...]] = {}
        for info in infos:
            dataset_losses = losses.of(info.name, info.task)
            if not dataset_losses:
                raise DataError(
                    f"dataset '{info.name}' ({info.task}) has no loss; "
                    f"give one under default, by_task: {{{info.task}: …}} or by_dataset"
                )
            self._losses[info.name] = tuple(x for x in dataset_losses if isinstance(x, Loss))
            self._token_losses[info.name] = tuple(
                x for x in dataset_losses if isinstance(x, TokenLoss)
            )
        self._learned: dict[int, Mapping[str, Tensor]] = {}
        self.parameters: dict[str, Tensor] = {}
        distinct_losses = {id(x): x for losses_ in self._losses.values() for x in losses_}
        for number, (identifier, loss) in enumerate(distinct_losses.items()):
            learned = {
                name: value.detach().clone().to(device).requires_grad_()
                for name, value in loss.parameters().items()
            }
            self._learned[identifier] = learned
            self.parameters |= {f"loss.{number}.{name}": v for name, v in learned.items()}

    def of(self, dataset: str) -> tuple[Loss, ...]:
        """Return the losses of a dataset's embeddings; none for one whose losses are over tokens."""
        return self._losses[dataset]

    def over_tokens(self, dataset: str) -> tuple[TokenLoss, ...]:
        """Return the losses over a dataset's tokens; none for a dataset of pairs."""
        return self._token_losses[dataset]

    def layers(self, datasets: Sequence[str]) -> tuple[float, ...]:
        """Return the intermediate layers that these datasets' losses read, as fractions."""
        return tuple(sorted({f for d in datasets for loss in self._losses[d] for f in loss.layers}))

    def gathers(self, dataset: str) -> bool:
        """Return whether a loss of the dataset reads the rows of all ranks."""
        return any(loss.cross_rank for loss in self._losses[dataset])

    def sum_losses(self, dataset: str, embeddings: Embeddings) -> Tensor:
        """Return the weighted sum of a dataset's losses over all rows of a batch, a scalar."""
        return self._sum(self._losses[dataset], embeddings, 1)

    def sum_gathering_losses(self, dataset: str, embeddings: Embeddings, ranks: int) -> Tensor:
        """Return one rank's share of the losses that read the rows of all ranks.

        The value and the gradient of the losses' learned parameters are divided by the number of ranks, as
        every rank computes the whole of them. The gradient of embeddings is not divided, as each rank uses
        only the gradient of its own rows.
        """
        losses = [loss for loss in self._losses[dataset] if loss.cross_rank]
        total = self._sum(losses, embeddings, ranks)
        return _WholeGradient.apply(total, ranks)  # type: ignore[no-any-return,no-untyped-call]

    def sum_local_losses(self, dataset: str, embeddings: Embeddings) -> Tensor:
        """Return the weighted sum of the losses that read a rank's own rows, a scalar."""
        losses = [loss for loss in self._losses[dataset] if not loss.cross_rank]
        return self._sum(losses, embeddings, 1)

    def _sum(self, losses: Sequence[Loss], embeddings: Embeddings, ranks: int) -> Tensor:
        total = embeddings.anchor.new_zeros(())
        for loss in losses:
            learned = self._learned[id(loss)]
            if ranks > 1:
                learned = {
                    name: _ShareOfGradient.apply(value, ranks)  # type: ignore[no-untyped-call]
                    for name, value in learned.items()
                }
            total = total + loss.weight * loss(embeddings, learned)
        return total


class _WholeGradient(torch.autograd.Function):
    """Autograd function that divides a value by the number of ranks, but not its gradient."""

    @staticmethod
    def forward(_: Any, value: Tensor, ranks: int) -> Tensor:
        return value / ranks

    @staticmethod
    def backward(_: Any, pull: Tensor) -> tuple[Tensor, None]:
        return pull, None


class _ShareOfGradient(torch.autograd.Function):
    """Autograd function that returns a value unchanged, but divides its gradient by the number of ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor, None]:
        return pull / ctx.ranks, None
