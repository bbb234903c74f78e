"""Statistics files: numbers measured of models once, by tensor or layer, for merges that need them.

A statistics file is a safetensors file whose tensors are called `<label>/<entry>`: the label is a model's or
a group's, the entry is a tensor's canonical name or a layer (`layers.7`, `embeddings`). Its metadata contain
the kind of the numbers (`measure`), the models (`base` and `model <label>` are fingerprints of content), the
data, and a hash of the numbers (`content`). The file contains no text of the data. Importing this module
loads no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from emberge.errors import CheckpointError
from emberge.files import replace_file
from emberge.tensor_files import TensorSpec, encode_header, read_header

if TYPE_CHECKING:
    from torch import Tensor

STATISTICS_FILE = "statistics.safetensors"
"""The file's name in the folder of a step that measures."""
_CONTENT = "content"
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Statistics:
    """Numbers by tensor or layer, and by label, with the known fingerprints of base and models.

    `measure` is the kind of the numbers; `facts` are further metadata: data, seed, versions.
    """

    values: Mapping[str, Mapping[str, Tensor | float]]
    base: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    measure: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def of(self, layer: str, tensor: str) -> dict[str, Tensor | float]:
        """Return the numbers for a block by label; a tensor's own entries come before its layer's."""
        return {**self.values.get(layer, {}), **self.values.get(tensor, {})}

    def write(self, folder: Path, name: str = STATISTICS_FILE) -> Path:
        """Write the file into the folder and return its path; plain numbers become float64 tensors.

        Raises:
            CheckpointError: if an entry's name contains a slash, which separates it from its label.
        """
        import torch

        from emberge.tensor_files import view_bytes

        tensors: dict[str, Tensor] = {}
        for entry_name, values in self.values.items():
            if "/" in entry_name:
                raise CheckpointError(
                    f"'{entry_name}' contains a slash and can be no layer or tensor"
                )
            for label, value in values.items():
                if not isinstance(value, torch.Tensor):
                    value = torch.tensor(value, dtype=torch.float64)
                tensors[f"{label}/{entry_name}"] = value.detach().cpu().contiguous()
        specs = [
            TensorSpec(key, tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for key, t in tensors.items()
        ]
        return self._write(folder / name, specs, lambda spec: [view_bytes(tensors[spec.name])])

    def write_joined(self, folder: Path, files: Sequence[Path]) -> Path:
        """Write the entries of several files into one file with this metadata, in pieces; return its path.

        Raises:
            CheckpointError: if two files have the same entry.
        """
        specs: dict[str, TensorSpec] = {}
        for file in files:
            for name, spec in StatisticsFile.open(file).specs.items():
                if name in specs:
                    raise CheckpointError(
                        f"{file}: '{name}' was measured twice; name the models apart"
                    )
                specs[name] = spec
        return self._write(
            folder / STATISTICS_FILE, list(specs.values()), lambda spec: _read_pieces([spec])
        )

    def _write(
        self,
        path: Path,
        specs: list[TensorSpec],
        read: Callable[[TensorSpec], Iterable[memoryview]],
    ) -> Path:
        """Write a file of entries, whose header gets their hash when all are written; return its path."""
        specs.sort(key=lambda spec: (-spec.itemsize, spec.name))  # so that each is aligned
        models = {f"model {label}": content for label, content in self.models.items()}
        metadata = {**self.facts, "measure": self.measure, "base": self.base, **models}
        hasher = xxhash.xxh3_128()
        with replace_file(path) as side, side.open("wb") as file:
            file.write(encode_header(specs, {**metadata, _CONTENT: hasher.hexdigest()})[0])
            for spec in specs:
                for piece in read(spec) if spec.nbytes else ():
                    hasher.update(piece)
                    file.write(piece)
            file.seek(0)
            file.write(encode_header(specs, {**metadata, _CONTENT: hasher.hexdigest()})[0])
        return path


@dataclass(frozen=True)
class StatisticsFile:
    """The header of a statistics file: its entries by full name, and its metadata."""

    path: Path
    specs: Mapping[str, TensorSpec]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> StatisticsFile:
        """Read the header of a file, or of the file in the folder of a step that measured.

        Raises:
            CheckpointError: if it is missing or damaged.
        """
        path = path / STATISTICS_FILE if path.is_dir() else path
        if not path.is_file():
            raise CheckpointError(f"{path}: there is no such statistics file")
        return cls(path, *read_header(path))

    @property
    def measure(self) -> str:
        """The kind of the numbers."""
        return self.metadata.get("measure", "")

    @property
    def base(self) -> str:
        """Fingerprint of the base; "" without a base."""
        return self.metadata.get("base", "")

    @property
    def models(self) -> dict[str, str]:
        """Fingerprint of each label's model."""
        pairs = self.metadata.items()
        return {k.removeprefix("model "): v for k, v in pairs if k.startswith("model ")}

    @functools.cached_property
    def entries(self) -> Mapping[str, Mapping[str, TensorSpec]]:
        """The entries by label, and by tensor or layer."""
        entries_by_label: dict[str, dict[str, TensorSpec]] = {}
        for name, spec in self.specs.items():
            label, slash, entry_name = name.rpartition("/")
            if not slash:
                raise CheckpointError(
                    f"{self.path}: '{name}' is not called <label>/<layer>, so this is no statistics "
                    "file"
                )
            entries_by_label.setdefault(label, {})[entry_name] = spec
        return entries_by_label

    def verify(self) -> str:
        """Return the hash of the numbers after comparing it with the header's.

        Raises:
            CheckpointError: if the numbers have another hash.
        """
        hasher = xxhash.xxh3_128()
        for piece in _read_pieces(self.specs.values()):
            hasher.update(piece)
        if self.metadata.get(_CONTENT) != hasher.hexdigest():
            raise CheckpointError(
                f"{self.path}: its numbers are not those that were measured; get or measure it again"
            )
        return str(hasher.hexdigest())

    def read(self) -> Statistics:
        """Read the whole file, whose numbers are compared with their hash.

        Raises:
            CheckpointError: if the file is damaged or no statistics file.
        """
        import torch

        from emberge.tensor_files import TensorReader

        self.verify()
        values: dict[str, dict[str, Tensor | float]] = {}
        with TensorReader() as reader:
            for label, entries in self.entries.items():
                for entry_name, spec in entries.items():
                    tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
                    reader.read(spec, 0, tensor.view(-1))
                    values.setdefault(entry_name, {})[label] = tensor
        header_keys = {"measure", "base", _CONTENT, *(f"model {label}" for label in self.models)}
        facts = {k: v for k, v in self.metadata.items() if k not in header_keys}
        return Statistics(values, self.base, self.models, self.measure, facts)


def _read_pieces(specs: Iterable[TensorSpec]) -> Iterator[memoryview]:
    """Yield the bytes of entries in pieces, in the order in which one file has them."""
    buffer = memoryview(bytearray(_READ_BYTES))
    for spec in sorted(specs, key=lambda s: s.offset):
        with spec.file.open("rb") as file:
            file.seek(spec.offset)
            bytes_left = spec.nbytes
            while bytes_left:
                read_count = file.readinto(buffer[: min(bytes_left, _READ_BYTES)])
                if not read_count:
                    raise CheckpointError(
                        f"{spec.file}: ends inside '{spec.name}'; get the file again"
                    )
                yield buffer[:read_count]
                bytes_left -= read_count
