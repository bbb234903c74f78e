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

from emberge.contracts import Stage, list_statistics_files, walk_stages
from emberge.errors import CheckpointError, EmbergeError, Problem
from emberge.files import replace_file
from emberge.merging.request import MergeInput, MergeRequest
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
                raise CheckpointError(f"'{entry_name}' holds a slash and can be no layer or tensor")
            for label, value in values.items():
                if not isinstance(value, torch.Tensor):
                    value = torch.tensor(value, dtype=torch.float64)
                tensors[f"{label}/{entry_name}"] = value.detach().cpu().contiguous()
        specs = [
            TensorSpec(key, tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for key, t in tensors.items()
        ]
        return self._write(folder / name, specs, lambda spec: [view_bytes(tensors[spec.name])])

    def write_joined(self, folder: Path, parts: Sequence[Path]) -> Path:
        """Write the entries of several files into one file with this metadata, in pieces; return its path.

        Raises:
            CheckpointError: if two files have the same entry.
        """
        specs: dict[str, TensorSpec] = {}
        for part in parts:
            for name, spec in StatisticsFile.open(part).specs.items():
                if name in specs:
                    raise CheckpointError(
                        f"{part}: '{name}' was measured twice; name the models apart"
                    )
                specs[name] = spec
        return self._write(
            folder / STATISTICS_FILE, list(specs.values()), lambda spec: _read_data([spec])
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
        for piece in _read_data(self.specs.values()):
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


def _read_data(specs: Iterable[TensorSpec]) -> Iterator[memoryview]:
    """Yield the bytes of entries of one file, in the order of the file."""
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


# ── the entries of a merge's models ─────────────────────────────────────────────────────────────
#
# An entry belongs to a model if the file has the fingerprint of the model's content.


def open_statistics(
    stages: Iterable[Stage], path_by_reference: Mapping[str, Path], *, steps: bool = True
) -> list[StatisticsFile]:
    """Open the statistics files that stages name themselves; those of steps are in `path_by_reference`.

    Without `steps`, files that an unfinished step will write are omitted.

    Raises:
        CheckpointError: if a file is missing.
    """
    references = {file.text: file for stage in stages for file in list_statistics_files(stage)}
    return [
        StatisticsFile.open(
            path_by_reference.get(text) or reference.folder / Path(reference.text).expanduser()
        )
        for text, reference in references.items()
        if steps or text in path_by_reference or not text.startswith("$")
    ]


def find_model_entries(stage: Stage, request: MergeRequest) -> dict[str, Mapping[str, TensorSpec]]:
    """Return each model's entries by tensor or layer, from the files that a stage names itself.

    Raises:
        CheckpointError: if a model has no fingerprint by which to find its entries, or is in no file.
    """
    files = open_statistics([stage], request.statistics)
    entries_by_model = {}
    for model in request.inputs:
        if not model.fingerprint:
            raise CheckpointError(
                f"'{model.name}' has no fingerprint to hold its statistics against; give the MergeInput "
                "fingerprint=hash_model(folder)"
            )
        owners = _find_owners(model, files)
        if len(owners) != 1:
            raise CheckpointError(_explain_owners(model, files, len(owners)))
        file, label = owners[0]
        entries_by_model[model.name] = file.entries.get(label, {})
    return entries_by_model


def find_statistics_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield the problems of existing statistics files, from their headers alone."""
    messages: dict[str, None] = {}
    for chain in request.chains:
        for stage in walk_stages(chain):
            try:
                files = open_statistics([stage], request.statistics, steps=False)
                messages.update(dict.fromkeys(_describe_file_problems(stage, files, request)))
            except EmbergeError as error:
                messages[str(error)] = None
    yield from map(Problem, messages)


def _describe_file_problems(
    stage: Stage, files: Sequence[StatisticsFile], request: MergeRequest
) -> Iterator[str]:
    problems = [
        problem for file in files for problem in _describe_file_problem(stage, file, request)
    ]
    yield from problems
    # Files that an unfinished step will make may have the missing models.
    are_complete = len(files) == len({file.text for file in list_statistics_files(stage)})
    if stage.statistics_of == "models" and are_complete and not problems:
        for model in request.inputs:
            count = len(_find_owners(model, files))
            if model.fingerprint and count != 1:
                yield _explain_owners(model, files, count)


def _describe_file_problem(
    stage: Stage, file: StatisticsFile, request: MergeRequest
) -> Iterator[str]:
    if stage.statistics_kind not in ("", file.measure):
        yield (
            f"{file.path}: holds {file.measure or 'another measure'}, and '{stage.name_in_messages}' needs "
            f"{stage.statistics_kind}; make it with measure: {stage.statistics_kind}"
        )
    base = request.base.fingerprint if request.base is not None else ""
    if base and file.base and file.base != base:
        yield (
            f"{file.path}: was measured from another base than this merge's (content {file.base[:12]}, not "
            f"{base[:12]}); measure it again"
        )


def _find_owners(
    model: MergeInput, files: Sequence[StatisticsFile]
) -> list[tuple[StatisticsFile, str]]:
    """Return each file, and label in it, under which exactly this model was measured."""
    return [
        (file, label)
        for file in files
        for label, content in file.models.items()
        if content == model.fingerprint
    ]


def _explain_owners(model: MergeInput, files: Sequence[StatisticsFile], count: int) -> str:
    paths = ", ".join(str(file.path) for file in files) or "no statistics file"
    if count:
        return f"{paths}: '{model.name}' was measured {count} times; name one file of each model"
    labels = [f"{label} ({content[:12]})" for f in files for label, content in f.models.items()]
    label_list = ", ".join(labels) or "nothing"
    return (
        f"{paths}: nothing was measured of '{model.name}' as it is now (content "
        f"{model.fingerprint[:12]}); there is {label_list}; measure it again"
    )
