"""Statistics files: numbers of other models, by layer or tensor, that a merge's stages may ask for.

A safetensors file of float64 tensors, each called `<label>/<place>`: the label is a model's or a group's in
the merge, the place a layer (`layers.7`, `embeddings`) or a tensor's canonical name. Its metadata say what
was measured: `base` and `model <label>` are fingerprints of content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from emberge.contracts.merge import Stage
from emberge.contracts.step import FileRef
from emberge.errors import CheckpointError

__all__ = [
    "STATISTICS",
    "Statistics",
    "read_statistics",
    "statistics_files",
    "statistics_path",
    "write_statistics",
]

STATISTICS = "statistics.safetensors"
"""The file's name in the folder of a step that measures."""


@dataclass(frozen=True)
class Statistics:
    """`values` by place and label; fingerprints of the base and of each label's model, where known."""

    values: Mapping[str, Mapping[str, Tensor | float]]
    base: str = ""
    models: Mapping[str, str] = field(default_factory=dict)

    def of(self, layer: str, tensor: str) -> dict[str, Tensor | float]:
        """What is known for a block by label; a tensor's own entries come before its layer's."""
        return {**self.values.get(layer, {}), **self.values.get(tensor, {})}


def write_statistics(folder: Path, statistics: Statistics) -> Path:
    """Write a folder's statistics file, float64 numbers as they are, and return its path.

    Raises:
        CheckpointError: when a place holds the slash that parts it from its label.
    """
    flat: dict[str, Tensor] = {}
    for place, values in statistics.values.items():
        if "/" in place:
            raise CheckpointError(f"'{place}' holds a slash and can be no layer or tensor")
        for label, value in values.items():
            flat[f"{label}/{place}"] = torch.as_tensor(value, dtype=torch.float64)
    models = {f"model {label}": content for label, content in statistics.models.items()}
    side = folder / f".{STATISTICS}.partial"
    save_file(flat, side, {"base": statistics.base, **models})
    return side.replace(folder / STATISTICS)


def read_statistics(path: Path) -> Statistics:
    """Read a statistics file, or the one in the folder of a step that measured.

    Raises:
        CheckpointError: when it is missing, damaged or no statistics file.
    """
    path = statistics_path(path)
    values: dict[str, dict[str, Tensor | float]] = {}
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 (a safetensors file, not a mapping)
                label, slash, place = name.rpartition("/")
                if not slash:
                    raise CheckpointError(
                        f"{path}: '{name}' is not called <label>/<layer>, so this is no statistics file"
                    )
                values.setdefault(place, {})[label] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from None
    models = {k.removeprefix("model "): v for k, v in metadata.items() if k.startswith("model ")}
    return Statistics(values, metadata.get("base", ""), models)


def statistics_path(path: Path) -> Path:
    """The file itself, given it or the folder of a step that measured.

    Raises:
        CheckpointError: when it is missing.
    """
    path = path / STATISTICS if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such statistics file")
    return path


def statistics_files(links: Iterable[Stage], made: Mapping[str, Path]) -> list[Path]:
    """The statistics files that links name; `made` says where those are that steps made."""
    named = {file.text: file for link in links for file in link.files()}
    return [made.get(text) or _outside(file) for text, file in named.items()]


def _outside(reference: FileRef) -> Path:
    path = Path(reference.text).expanduser()
    return path if path.is_absolute() else reference.folder / path
