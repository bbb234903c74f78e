"""Warnings of training options that are legal but almost certainly a mistake."""

from __future__ import annotations

from collections.abc import Iterator

from emberge import Loss, PerDataset, TokenLoss
from emberge.data import CheckedData
from emberge.training import FitOptions


def loss_warnings(losses: PerDataset[tuple[Loss | TokenLoss, ...]]) -> Iterator[str]:
    """Yield the losses' own warnings, each with the loss's class."""
    losses_by_scope = [losses.default, *losses.by_task.values(), *losses.by_dataset.values()]
    for loss in (item for group in losses_by_scope for item in group or ()):
        for warning in loss.warnings():
            yield f"{type(loss).__name__}: {warning}"


def data_warnings(options: FitOptions, checked: CheckedData) -> Iterator[tuple[str, str]]:
    """Yield (option, warning) for options that do not fit the rows that were looked at."""
    for warning in _check_negatives(options, checked):
        yield "hard_negatives", warning
    kinds = {head.info.task for head in checked.heads}
    if options.packing is not None and kinds and "text" not in kinds:
        yield (
            "packing",
            (
                "packing lays single texts side by side for losses over tokens, and no dataset here is of "
                "the task text, so it changes nothing; take it out"
            ),
        )


def _check_negatives(options: FitOptions, checked: CheckedData) -> Iterator[str]:
    """Yield a warning if more hard negatives are asked for than any of the inspected rows has.

    The default works for data without hard negatives, so it is not warned about.
    """
    most = max((head.negatives for head in checked.heads), default=None)
    requested = options.hard_negatives
    if most is None or requested <= most or requested == FitOptions.hard_negatives:
        return
    inspected = "the rows that were looked at (the first 100 of each dataset)"
    if not most:
        yield f"hard_negatives {requested}: {inspected} have none; is their column named otherwise?"
        return
    yield (
        f"hard_negatives {requested}: {inspected} have at most {most}, and each row "
        "repeats its own to fill the "
        f"rest; write hard_negatives: {most}"
    )
