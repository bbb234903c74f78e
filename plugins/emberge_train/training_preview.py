"""Preview of a training before it starts: rows after selection, and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from emberge import DatasetInfo, Negatives, PerDataset, Pool, Preflight, Sampler
from emberge.contracts import cuts_windows
from emberge.data import count_datasets, expand
from emberge.training import BatchPlan, select_rows, steps_to_keep

from emberge_train.train_options import TrainOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from emberge import DataRef

# Bytes of data above which rows are not counted, so that a check takes only seconds.
COUNTED_BYTES = 16_000_000


@dataclass(frozen=True)
class TrainingPreview:
    """Rows that a training will use from its data, and its number of steps.

    `rows` are the numbers of rows of the `datasets` that the training will use, and `kept` is the largest
    number of checkpoints that it will keep. Windows of single texts are not counted, as that needs the
    model's tokenizer. With a dataset that is cut into windows, `steps` is unknown, and all its texts are
    assumed to be used.
    """

    datasets: tuple[DatasetInfo, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    steps: int | None = None
    kept: int = 0

    @property
    def lines(self) -> list[str]:
        """Preview as lines for the terminal; none if the data could not be counted."""
        if not self.datasets:
            return []
        used = {info: self.rows.get(info.name, 0) for info in self.datasets}
        lines = [
            f"{info.name}: {rows:,} rows" + (f" of {info.size:,}" if rows != info.size else "")
            for info, rows in used.items()
        ]
        rows, total = sum(used.values()), sum(info.size for info in used)
        if rows != total and len(used) > 1:
            lines.append(f"{rows / total:.3g} of all rows ({rows:,} of {total:,})")
        if self.steps is None:
            return [*lines, "as many steps as the windows of the texts fill batches"]
        return [*lines, f"{self.steps:,} steps"]


def preview_training(
    step: TrainOptions,
    sampler: Sequence[Sampler],
    negatives: PerDataset[Negatives],
    context: Preflight,
) -> TrainingPreview:
    """Return the rows of each dataset that the training will use, and the number of steps.

    Data that are not on this machine yet, or that are too large to be counted quickly, are not counted.

    Raises:
        DataError: if data cannot be read, or do not fill a batch.
    """
    entries = step.data
    are_present = all(entry.path is not None and context.data(entry.path) for entry in entries)
    locate = cast("Callable[[DataRef], Path]", context.data)  # what is present has a path
    if not are_present or not _can_be_counted(step, context, locate):
        return TrainingPreview(kept=step.keep_last)
    infos = tuple(count_datasets(entries, readers=context.readers, resolve=locate))
    pool: Pool = {info: range(info.size) for info in infos}
    seed = step.seed or 0
    texts = {
        info: rows
        for info, rows in pool.items()
        if cuts_windows(step.loss.of(info.name, info.task) or (), info)
    }
    if texts:
        pairs = {info: rows for info, rows in pool.items() if info not in texts}
        selected = {**select_rows(sampler, pairs, seed), **texts}
        return TrainingPreview(infos, _count_rows(selected), kept=step.keep_last)
    plan = BatchPlan(
        pool,
        sampler,
        seed=seed,
        epochs=step.epochs or 1.0,
        max_steps=step.max_steps,
        negatives=negatives,
    )
    kept = min(len(steps_to_keep(plan, step)), step.keep_last)
    return TrainingPreview(infos, _count_rows(plan.pool), plan.steps, kept)


def _count_rows(pool: Pool) -> dict[str, int]:
    return {info.name: len(rows) for info, rows in pool.items()}


def _can_be_counted(
    step: TrainOptions, context: Preflight, locate: Callable[[DataRef], Path]
) -> bool:
    """Return whether every file exists and all together are small enough to be counted."""
    found = (expand(entry, readers=context.readers, resolve=locate) for entry in step.data)
    files = {source.path for sources in found for source in sources}
    if any(file is None or not file.is_file() for file in files):
        return False
    return sum(file.stat().st_size for file in files if file is not None) <= COUNTED_BYTES
