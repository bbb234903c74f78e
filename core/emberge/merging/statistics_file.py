"""Statistics files: numbers measured of models once, by tensor or layer, for merges that need them.

A statistics file is a safetensors file whose tensors are called `<label>/<place>`: the label is a model's or
a group's, the place is a tensor's canonical name or a layer (`layers.7`, `embeddings`). Its metadata contain
the kind of the numbers (`measure`), the models (`base` and `model <label>` are fingerprints of content), the
data, and a hash of the numbers (`content`). The file contains no text of the data. Importing this module
loads no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from emberge.contracts import FileRef, Stage, all_stages, list_statistics_files
from emberge.errors import CheckpointError
from emberge.files import replace_file
from emberge.tensor_files import TensorSpec, encode_header, read_header

if TYPE_CHECKING:
    from torch import Tensor

STATISTICS = "statistics.safetensors"
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

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the file, without the hash of the numbers."""
        models = {f"model {label}": content for label, content in self.models.items()}
        return {**self.facts, "measure": self.measure, "base": self.base, **models}

    def write(self, folder: Path, name: str = STATISTICS) -> Path:
        """Write the file into the folder and return its path; plain numbers become float64 tensors.

        Raises:
            CheckpointError: if a place contains a slash, which separates it from its label.
        """
        import torch

        from emberge.tensor_files import bytes_of

        tensors: dict[str, Tensor] = {}
        for entry_name, values in self.values.items():
            if "/" in entry_name:
                raise CheckpointError(f"'{entry_name}' holds a slash and can be no layer or tensor")
            for label, value in values.items():
                if not isinstance(value, torch.Tensor):
                    value = torch.tensor(value, dtype=torch.float64)
                tensors[f"{label}/{entry_name}"] = value.detach().cpu().contiguous()
        specs = [
            TensorSpec(key, tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for key, t in tensors.items()
        ]
        ordered_specs = _order_specs(specs)
        pieces = (bytes_of(tensors[spec.name]) for spec in ordered_specs if spec.nbytes)
        return _write_file(folder / name, ordered_specs, self.metadata, pieces)

    def write_joined(self, folder: Path, parts: Sequence[Path]) -> Path:
        """Write the entries of several files into one file with this metadata, in pieces; return its path.

        Raises:
            CheckpointError: if two files have the same entry.
        """
        specs: dict[str, TensorSpec] = {}
        for part in parts:
            for name, spec in StatisticsFile(part).specs.items():
                if name in specs:
                    raise CheckpointError(
                        f"{part}: '{name}' was measured twice; name the models apart"
                    )
                specs[name] = spec
        ordered_specs = _order_specs(list(specs.values()))
        pieces = (piece for spec in ordered_specs for piece in _read_data(spec.file, [spec]))
        return _write_file(folder / STATISTICS, ordered_specs, self.metadata, pieces)


@dataclass(frozen=True)
class StatisticsFile:
    """A statistics file, of which only the header is read until numbers are needed.

    Raises:
        CheckpointError: if it is missing, damaged or no statistics file.
    """

    path: Path

    @functools.cached_property
    def _header(self) -> tuple[dict[str, TensorSpec], dict[str, str]]:
        try:
            return read_header(self.path)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: not a readable safetensors file ({error})"
            ) from None

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """All entries by their full names."""
        return self._header[0]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata."""
        return self._header[1]

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

    @functools.cached_property
    def content(self) -> str:
        """The hash of the numbers, computed by reading all of them."""
        hasher = xxhash.xxh3_128()
        for piece in _read_data(self.path, self.specs.values()):
            hasher.update(piece)
        return str(hasher.hexdigest())

    def verify(self) -> StatisticsFile:
        """Return this file after checking its numbers against the hash in the header.

        Raises:
            CheckpointError: if the numbers have another hash.
        """
        if self.metadata.get(_CONTENT) != self.content:
            raise CheckpointError(
                f"{self.path}: its numbers are not those that were measured; get or measure it again"
            )
        return self


def read_statistics(path: Path) -> Statistics:
    """Read a whole statistics file, or the one in the folder of a step that measured.

    Raises:
        CheckpointError: if it is missing, damaged or no statistics file.
    """
    import torch

    from emberge.tensor_files import TensorReader

    file = StatisticsFile(statistics_path(path)).verify()
    values: dict[str, dict[str, Tensor | float]] = {}
    with TensorReader() as reader:
        for label, entries in file.entries.items():
            for entry_name, spec in entries.items():
                tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
                reader.read(spec, 0, tensor.view(-1))
                values.setdefault(entry_name, {})[label] = tensor
    header_keys = {"measure", "base", _CONTENT, *(f"model {label}" for label in file.models)}
    facts = {k: v for k, v in file.metadata.items() if k not in header_keys}
    return Statistics(values, file.base, file.models, file.measure, facts)


def statistics_path(path: Path) -> Path:
    """Return the path of the file, given the file or the folder of a step that measured.

    Raises:
        CheckpointError: if it is missing.
    """
    path = path / STATISTICS if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such statistics file")
    return path


def statistics_files(links: Iterable[Stage], path_by_reference: Mapping[str, Path]) -> list[Path]:
    """Return the paths of the statistics files that links name; steps' files are in `path_by_reference`."""
    file_by_text = {
        file.text: file for link in all_stages(links) for file in list_statistics_files(link)
    }
    return [
        path_by_reference.get(text) or _resolve_path(file) for text, file in file_by_text.items()
    ]


def open_statistics(
    link: Stage, path_by_reference: Mapping[str, Path], *, steps: bool = True
) -> list[StatisticsFile]:
    """Open the statistics files that a link names.

    Without `steps`, files that an unfinished step will write are omitted.

    Raises:
        CheckpointError: if a file is missing.
    """
    file_by_text = {file.text: file for file in list_statistics_files(link)}
    available = {
        t: f
        for t, f in file_by_text.items()
        if steps or t in path_by_reference or not t.startswith("$")
    }
    paths = [path_by_reference.get(text) or _resolve_path(file) for text, file in available.items()]
    return [StatisticsFile(statistics_path(path)) for path in paths]


def _resolve_path(reference: FileRef) -> Path:
    path = Path(reference.text).expanduser()
    return path if path.is_absolute() else reference.folder / path


def _order_specs(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    # Wider numbers first, so that each is aligned for readers.
    return sorted(specs, key=lambda spec: (-spec.itemsize, spec.name))


def _read_data(path: Path, specs: Iterable[TensorSpec]) -> Iterator[memoryview]:
    """Yield the bytes of entries in the order of the file."""
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb") as file:
        for spec in sorted(specs, key=lambda s: s.offset):
            file.seek(spec.offset)
            bytes_left = spec.nbytes
            while bytes_left:
                read_count = file.readinto(buffer[: min(bytes_left, _READ_BYTES)])
                if not read_count:
                    raise CheckpointError(f"{path}: ends inside '{spec.name}'; get the file again")
                yield buffer[:read_count]
                bytes_left -= read_count


def _write_file(
    path: Path,
    specs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    pieces: Iterable[memoryview],
) -> Path:
    """Write a file of entries, whose header gets their hash when all are written, and return its path."""
    hasher = xxhash.xxh3_128()
    with replace_file(path) as side, side.open("wb") as file:
        file.write(encode_header(specs, {**metadata, _CONTENT: hasher.hexdigest()})[0])
        for piece in pieces:
            hasher.update(piece)
            file.write(piece)
        file.seek(0)
        file.write(encode_header(specs, {**metadata, _CONTENT: hasher.hexdigest()})[0])
    return path
