"""What a training will do, told before it starts: rows after selection, steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emberge.contracts.dataset import Reader
from emberge.contracts.sampler import Sampler
from emberge.contracts.step import DataRef
from emberge.data.datasets import load_datasets
from emberge.data.entry import DataEntry
from emberge.data.sources import expand
from emberge.training.manifest import refuse_unknown_names
from emberge.training.options import FitOptions
from emberge.training.plan import BatchPlan

__all__ = ["outlook"]

# Data beyond this many bytes are not counted: a check takes seconds.
COUNTED_BYTES = 16_000_000


def outlook(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    sampler: Sequence[Sampler],
    options: FitOptions,
    seed: int,
) -> list[str]:
    """Lines that say how many rows each dataset gives and how many steps there will be.

    None are said of data that do not lie here yet, or that are too large to be counted in passing.

    Raises:
        DataError: for data that cannot be read, or that fill no batch.
    """
    places: dict[DataRef, Path] = {}
    for entry in entries:
        place = resolve(entry.path) if entry.path is not None else None
        if entry.path is None or place is None:
            return []
        places[entry.path] = place
    sources = [s for e in entries for s in expand(e, readers=readers, resolve=places.__getitem__)]
    files = [s.path for s in sources]
    if any(f is None or not f.is_file() for f in files):
        return []
    if sum(f.stat().st_size for f in files if f is not None) > COUNTED_BYTES:
        return []
    datasets = load_datasets(entries, readers=readers, resolve=places.__getitem__)
    refuse_unknown_names(vars(options), [d.info for d in datasets])
    plan = BatchPlan(
        {d.info: range(len(d)) for d in datasets},
        sampler,
        seed=seed,
        epochs=options.epochs or 1.0,
        max_steps=options.max_steps,
        negatives=options.negatives,
    )
    sizes = {d.info.name: len(d) for d in datasets}
    lines = [
        f"{name}: {plan.sizes.get(name, 0):,} rows"
        + (f" of {size:,}" if plan.sizes.get(name) != size else "")
        for name, size in sizes.items()
    ]
    return [*lines, f"{plan.steps:,} steps"]
