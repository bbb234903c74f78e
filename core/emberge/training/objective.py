"""Losses of a training: by dataset, with their learned parameters, and their weighted sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import (
    COLUMNS,
    AnyLoss,
    DatasetInfo,
    Embeddings,
    Loss,
    PerDataset,
    TokenLoss,
    kind_problems,
)
from emberge.errors import DataError, PluginError

OFFERED = frozenset(
    {"negative", "contrast", "judgement", "positive_score", "negative_score", "label"}
)


class Objective:
    """Losses by dataset, with their learned parameters by name.

    Raises:
        DataError: if a dataset has no loss, or a loss for another kind of data.
        PluginError: if a loss needs or embeds a column that the runner does not offer.
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
            for problem in kind_problems(dataset_losses, info):
                raise DataError(problem)
            self._losses[info.name] = tuple(
                loss for loss in dataset_losses if isinstance(loss, Loss)
            )
            self._token_losses[info.name] = tuple(
                loss for loss in dataset_losses if isinstance(loss, TokenLoss)
            )
        self._learned: dict[int, dict[str, Tensor]] = {}
        self.parameters: dict[str, Tensor] = {}
        for number, loss in enumerate(self._list_distinct_losses()):
            self._check(loss)
            parameter_by_name = {
                name: value.detach().clone().to(device).requires_grad_()
                for name, value in loss.parameters().items()
            }
            self._learned[id(loss)] = parameter_by_name
            self.parameters |= {f"loss.{number}.{name}": v for name, v in parameter_by_name.items()}

    def _list_distinct_losses(self) -> Iterator[Loss]:
        seen_ids: set[int] = set()
        for losses in self._losses.values():
            for loss in losses:
                if id(loss) not in seen_ids:
                    seen_ids.add(id(loss))
                    yield loss

    @staticmethod
    def _check(loss: Loss) -> None:
        missing = sorted(loss.needs - OFFERED)
        if missing:
            raise PluginError(
                f"loss '{type(loss).__name__}' needs '{missing[0]}', which the training runner does not "
                f"offer; it offers {', '.join(sorted(OFFERED))}"
            )
        if not loss.embeds or not loss.embeds <= COLUMNS:
            raise PluginError(
                f"loss '{type(loss).__name__}' embeds {sorted(loss.embeds) or 'no column'}; name some of "
                f"{', '.join(sorted(COLUMNS))}"
            )

    def of(self, dataset: str) -> tuple[Loss, ...]:
        """Return the losses of a dataset's embeddings; none for one whose losses are over tokens."""
        return self._losses[dataset]

    def over_tokens(self, dataset: str) -> tuple[TokenLoss, ...]:
        """Return the losses over a dataset's tokens; none for a dataset of pairs."""
        return self._token_losses[dataset]

    def layers(self, datasets: Sequence[str]) -> tuple[float, ...]:
        """Return the intermediate layers that these datasets' losses read, as fractions."""
        return tuple(sorted({f for d in datasets for loss in self._losses[d] for f in loss.layers}))

    def embeds(self, dataset: str) -> frozenset[str]:
        """Return the columns that the trained model must embed because the dataset's losses read them."""
        return frozenset().union(*(loss.embeds for loss in self._losses[dataset]))

    def gathers(self, dataset: str) -> bool:
        """Return whether a loss of the dataset reads the rows of all ranks."""
        return any(loss.cross_rank for loss in self._losses[dataset])

    def __call__(self, dataset: str, embeddings: Embeddings) -> Tensor:
        """Return the weighted sum of a dataset's losses over all rows of a batch."""
        return self._sum(self._losses[dataset], embeddings, 1)

    def gathering(self, dataset: str, embeddings: Embeddings, ranks: int) -> Tensor:
        """Return one rank's share of the losses that read the rows of all ranks.

        The value and the gradient of the losses' learned parameters are divided by the number of ranks, as
        every rank computes the whole of them. The gradient of embeddings is not divided, as each rank uses
        only the gradient of its own rows.
        """
        losses = [loss for loss in self._losses[dataset] if loss.cross_rank]
        total = self._sum(losses, embeddings, ranks)
        return _WholeGradient.apply(total, ranks)  # type: ignore[no-any-return,no-untyped-call]

    def local(self, dataset: str, embeddings: Embeddings) -> Tensor:
        """Return the weighted sum of the losses that read a rank's own rows."""
        losses = [loss for loss in self._losses[dataset] if not loss.cross_rank]
        return self._sum(losses, embeddings, 1)

    def _sum(self, losses: Sequence[Loss], embeddings: Embeddings, ranks: int) -> Tensor:
        total = embeddings.anchor.new_zeros(())
        for loss in losses:
            parameter_by_name = self._learned[id(loss)]
            if ranks > 1:
                parameter_by_name = {
                    name: _ShareOfGradient.apply(value, ranks)  # type: ignore[no-untyped-call]
                    for name, value in parameter_by_name.items()
                }
            total = total + loss.weight * loss(embeddings, parameter_by_name)
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
