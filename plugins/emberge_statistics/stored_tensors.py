"""What a checkpoint's tensors are called, and files of numbers that were measured of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from emberge_statistics.fisher_information import StoredTensors

__all__ = ["part_writer", "stored_tensors"]


def stored_tensors(folder: Path) -> StoredTensors:
    """The tensors of a model folder by the names that merges know them by.

    Raises:
        CheckpointError: when two of them would have one name.
    """
    from emberge.engine import Checkpoint, canonical_names, is_vocabulary, prefix_of

    from emberge_statistics.fisher_information import StoredTensors

    specs = canonical_names(Checkpoint(folder)).specs

    def canonical(stored: Sequence[str]) -> list[str]:
        prefix = prefix_of(stored)
        return [name if name in specs else name.removeprefix(prefix) for name in stored]

    shapes = {name: spec.shape for name, spec in specs.items() if spec.mergeable}
    return StoredTensors(shapes, frozenset(filter(is_vocabulary, shapes)), canonical)


def part_writer(
    work: Path, label: str, measure: str
) -> Callable[[str, Mapping[str, Tensor]], Path]:
    """What writes a file of a model's numbers by tensor into `work`, under its label."""
    from emberge.engine import Statistics, write_statistics

    def write(name: str, values: Mapping[str, Tensor]) -> Path:
        entries = {place: {label: value} for place, value in values.items()}
        return write_statistics(work, Statistics(entries, measure=measure), name)

    return write
