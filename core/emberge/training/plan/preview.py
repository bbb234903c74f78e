"""Preview of a training before it starts: rows after selection, and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from emberge.contracts import (
    AnyLoss,
    DataRef,
    DatasetInfo,
    PerDataset,
    Pool,
    Reader,
    Rows,
    Sampler,
    cuts_windows,
)
from emberge.data import DataEntry, count_datasets, expand
from emberge.training.fit_options import FitOptions
from emberge.training.plan.batch_plan import (
    BatchPlan,
    refuse_unknown_names,
    select,
    steps_to_keep,
)

# Bytes of data above which rows are not counted, so that a check takes only seconds.
COUNTED_BYTES = 16_000_000


@dataclass(frozen=True)
class TrainingPreview:
    """Rows that a training will use from its data, and its number of steps.

    `rows` are the row numbers of each of the `datasets` that the training will use, and `kept` is the largest
    number of checkpoints that it will keep. Windows of single texts are not counted, as that needs the
    model's tokenizer. With a dataset that is cut into windows, `steps` is unknown, and all its texts are
    assumed to be used.
    """

    datasets: tuple[DatasetInfo, ...] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict, compare=False)
    steps: int | None = None
    kept: int = 0

    @property
    def sizes(self) -> Mapping[str, int]:
        """Rows of each dataset before the sampler selects."""
        return {info.name: info.size for info in self.datasets}

    @property
    def lines(self) -> list[str]:
        """Preview as lines for the terminal; none if the data could not be counted."""
        if not self.datasets:
            return []
        row_counts = {name: len(self.rows.get(name, ())) for name in self.sizes}
        lines = [
            f"{name}: {row_counts[name]:,} rows"
            + (f" of {size:,}" if row_counts[name] != size else "")
            for name, size in self.sizes.items()
        ]
        rows, total = sum(row_counts.values()), sum(self.sizes.values())
        if rows != total and len(row_counts) > 1:
            lines.append(f"{rows / total:.3g} of all rows ({rows:,} of {total:,})")
        if self.steps is None:
            return [*lines, "as many steps as the windows of the texts fill batches"]
        return [*lines, f"{self.steps:,} steps"]


def preview_training(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    sampler: Sequence[Sampler],
    losses: PerDataset[tuple[AnyLoss, ...]],
    options: FitOptions,
    seed: int,
) -> TrainingPreview:
    """Return the rows of each dataset that the training will use, and the number of steps.

    Data that are not on this machine yet, or that are too large to be counted quickly, are not counted.

    Raises:
        DataError: if data cannot be read, or do not fill a batch.
    """
    are_present = all(entry.path is not None and resolve(entry.path) for entry in entries)
    locate = cast("Callable[[DataRef], Path]", resolve)  # what is present has a path
    if not are_present or not _can_be_counted(entries, readers, locate):
        return TrainingPreview(kept=options.keep_last)
    infos = tuple(count_datasets(entries, readers=readers, resolve=locate))
    refuse_unknown_names({"loss": losses, **vars(options)}, infos)
    pool: Pool = {info: range(info.size) for info in infos}
    text_pools = {
        info: rows
        for info, rows in pool.items()
        if cuts_windows(losses.of(info.name, info.task) or (), info)
    }
    if text_pools:
        pairs = {info: rows for info, rows in pool.items() if info not in text_pools}
        selected = {**select(sampler, pairs, seed), **text_pools}
        rows = {info.name: rows for info, rows in selected.items()}
        return TrainingPreview(infos, rows, kept=options.keep_last)
    plan = BatchPlan(
        pool,
        sampler,
        seed=seed,
        epochs=options.epochs or 1.0,
        max_steps=options.max_steps,
        negatives=options.negatives,
    )
    return TrainingPreview(
        datasets=infos,
        rows={info.name: rows for info, rows in plan.pool.items()},
        steps=plan.steps,
        kept=min(len(steps_to_keep(plan, options)), options.keep_last),
    )


def _can_be_counted(
    entries: Iterable[DataEntry], readers: Sequence[Reader], locate: Callable[[DataRef], Path]
) -> bool:
    """Return whether every file exists and all together are small enough to be counted."""
    sources = [s for e in entries for s in expand(e, readers=readers, resolve=locate)]
    files = {s.path for s in sources}
    if any(f is None or not f.is_file() for f in files):
        return False
    return sum(f.stat().st_size for f in files if f is not None) <= COUNTED_BYTES
