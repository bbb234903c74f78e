"""The losses of a training: which dataset has which, what they learn themselves, and their weighted sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from emberge.contracts.dataset import DatasetInfo
from emberge.contracts.loss import Embeddings, Loss
from emberge.contracts.option import PerDataset
from emberge.errors import DataError, PluginError

__all__ = ["Objective"]

OFFERED = frozenset({"negative", "contrast", "positive_score", "label"})


class Objective:
    """Losses by dataset, with their learned parameters by name.

    Raises:
        DataError: for a dataset without a loss.
        PluginError: for a loss that needs what the runner does not offer.
    """

    def __init__(
        self, losses: PerDataset[tuple[Loss, ...]], infos: Sequence[DatasetInfo], device: str
    ) -> None:
        self._losses: dict[str, tuple[Loss, ...]] = {}
        for info in infos:
            found = losses.of(info.name, info.task)
            if not found:
                raise DataError(
                    f"dataset '{info.name}' ({info.task}) has no loss; "
                    f"give one under default, by_task: {{{info.task}: …}} or by_dataset"
                )
            self._losses[info.name] = tuple(found)
        self._learned: dict[int, dict[str, Tensor]] = {}
        self.parameters: dict[str, Tensor] = {}
        for number, loss in enumerate(self._distinct()):
            self._check(loss)
            learned = {
                name: value.detach().clone().to(device).requires_grad_()
                for name, value in loss.parameters().items()
            }
            self._learned[id(loss)] = learned
            self.parameters |= {f"loss.{number}.{name}": v for name, v in learned.items()}

    def _distinct(self) -> Iterator[Loss]:
        seen: set[int] = set()
        for losses in self._losses.values():
            for loss in losses:
                if id(loss) not in seen:
                    seen.add(id(loss))
                    yield loss

    @staticmethod
    def _check(loss: Loss) -> None:
        beyond = sorted(loss.needs - OFFERED)
        if beyond:
            raise PluginError(
                f"loss '{type(loss).__name__}' needs '{beyond[0]}', which the training runner does not "
                f"offer; it offers {', '.join(sorted(OFFERED))}"
            )

    def of(self, dataset: str) -> tuple[Loss, ...]:
        """The losses of a dataset."""
        return self._losses[dataset]

    def layers(self, datasets: Sequence[str]) -> tuple[float, ...]:
        """The intermediate layers that these datasets' losses want."""
        return tuple(sorted({f for d in datasets for loss in self._losses[d] for f in loss.layers}))

    def __call__(self, dataset: str, embeddings: Embeddings) -> Tensor:
        """The weighted sum of a dataset's losses."""
        total = embeddings.anchor.new_zeros((), dtype=torch.float32)
        for loss in self._losses[dataset]:
            total = total + loss.weight * loss(embeddings, self._learned[id(loss)])
        return total

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put back learned parameters."""
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(saved[name])
