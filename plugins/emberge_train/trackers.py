"""Trackers of experiments: TensorBoard, Weights & Biases and others of accelerate."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from emberge import RecipeError, suggest

# accelerate's own, each under the name of the module that it needs.
_MODULES = (
    *("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio"),
    "wandb",
)
_EXTRAS = {"tensorboard": "'emberge[tensorboard]'"}

Metric = Callable[..., None]


def tracker_problems(names: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each tracker that is unknown or not installed."""
    for name in names:
        if name in _MODULES:
            if importlib.util.find_spec(name) is None:
                package = _EXTRAS.get(name, name.replace("_", "-"))
                yield f"tracker '{name}' is not installed; install it: pip install {package}"
            continue
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        if name not in LOGGER_TYPE_TO_CLASS:
            hint = suggest(name, _MODULES) or f"; known: {', '.join(_MODULES)}"
            yield f"there is no tracker '{name}'{hint}"


@contextlib.contextmanager
def open_trackers(
    names: Sequence[str], *, run: str, folder: Path, metric: Metric
) -> Iterator[Metric]:
    """Yield a function that logs a number with `metric` and all trackers; trackers are closed at the end.

    A tracker is opened when the first number is logged, under the name `run`. Trackers that write files write
    them in `folder/run`.

    Raises:
        RecipeError: if a tracker is unknown or not installed.
    """
    for fault in tracker_problems(names):
        raise RecipeError(fault)
    trackers: list[Any] = []

    def log(name: str, value: float, at: int | None = None) -> None:
        metric(name, value, at)
        if not trackers:
            trackers.extend(_open(name, run, folder) for name in names)
        for tracker in trackers:
            tracker.log({name: float(value)}, step=at)

    try:
        yield log if names else metric
    finally:
        for tracker in trackers:
            tracker.finish()


def _open(name: str, run: str, folder: Path) -> Any:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    tracker_class: Any = LOGGER_TYPE_TO_CLASS[name]
    if tracker_class.requires_logging_directory:
        folder.mkdir(parents=True, exist_ok=True)
        tracker = tracker_class(run, str(folder))
    else:
        tracker = tracker_class(run)
    tracker.start()
    return tracker
