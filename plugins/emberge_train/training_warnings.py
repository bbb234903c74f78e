"""Warnings of training options that are legal but almost certainly a mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator

from emberge import Loss, PerDataset, TokenLoss
from emberge.data import CheckedData
from emberge.training import FitOptions

# AdamW moves each weight by about the learning rate a step, and few weights of a model are above 1.
_LARGEST_RATE = 1.0
# A warm-up longer than all that comes after it.
_LONGEST_WARMUP = 0.5
# Rates that an exponent without its minus turns into thousands and more.
_SIGN_FORGOTTEN = 1e3


def option_warnings(options: FitOptions) -> Iterator[tuple[str, str]]:
    """Yield (option, warning) for mistakes that the options alone reveal."""
    rate, warmup = options.learning_rate, options.warmup_share(options.max_steps)
    if rate == 0:
        yield "learning_rate", "learning_rate 0 leaves the model as it is"
    if rate >= _LARGEST_RATE:
        yield "learning_rate", _describe_rate(rate)
    if warmup > _LONGEST_WARMUP:
        option = "warmup_ratio" if options.warmup_steps is None else "warmup_steps"
        yield (
            option,
            (
                f"{option} {getattr(options, option):g} is the part of the training over which the learning "
                f"rate rises: {_describe_remainder(warmup)}; 0.05 to 0.1 of the steps is usual"
            ),
        )


def _describe_rate(rate: float) -> str:
    meant = ""
    if rate >= _SIGN_FORGOTTEN:
        exponent = math.floor(math.log10(rate))
        meant = f"; did you mean {rate / 10**exponent:g}e-{exponent}?"
    return (
        f"learning_rate {rate:g}: AdamW moves every weight by about as much in each step, which leaves "
        f"nothing of the model{meant}"
    )


def _describe_remainder(warmup: float) -> str:
    if warmup >= 1:
        return "the training ends before it has risen"
    return f"only {1 - warmup:.2g} of the training is left when it has risen"


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
