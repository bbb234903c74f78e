"""Headers of safetensors files, and notes with the header of a file on a server; loads no torch.

Headers are read, checked and written, with the provenance in them.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import open_regular, read_json

PROVENANCE_KEY = "emberge"
"""The key of a safetensors header under which the provenance is kept, as JSON."""
_PACKAGES = ("emberge", "torch", "transformers", "safetensors")
WEIGHTS_FILE = "model.safetensors"
SHARD_BYTES = 5 * 10**9
"""Largest size in bytes of a file of weights by default, as in Hugging Face's libraries."""
# For each of safetensors' names of element types torch's name, and the bytes of an element.
_DTYPE_BY_CODE: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "C64": ("complex64", 8),
}
_CODE_BY_DTYPE = {name: code for code, (name, _) in _DTYPE_BY_CODE.items()}
_BYTES_BY_DTYPE = dict(_DTYPE_BY_CODE.values())
_NOTE_SUFFIX = ".remote"
# Limit of a note in bytes: the longest header in base64, and the other facts.
_LONGEST_NOTE = 140_000_000


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name, shape, dtype and position in a file, known before its bytes are read.

    `dtype` is torch's name; `offset` counts from the start of `file`, and is 0 for a tensor that is not
    written yet.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path = Path()
    offset: int = 0

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return _BYTES_BY_DTYPE[self.dtype]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return self.elements * self.itemsize

    @property
    def mergeable(self) -> bool:
        """True if the elements are plain floating-point numbers, which can be averaged."""
        return self.dtype in ("float64", "float32", "float16", "bfloat16")

    def with_name(self, name: str) -> TensorSpec:
        """Return the same tensor under another name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Facts of a safetensors file on a server at the time when they were read, kept in a note.

    A note is a small file, `model.safetensors.remote`, in the place of the large one. It has all that a plan
    needs, so a checkpoint is described without the server.

    `version` is the server's text that changes with the content: a hash, an ETag, a time. `sha256` is the
    hash of the whole file, if the server provides it. `header` contains the file's bytes before the tensors.
    """

    url: str
    size: int
    version: str
    sha256: str | None
    header: bytes

    @property
    def content(self) -> str:
        """Text that identifies the bytes: the hash, or without a hash the address, size and version."""
        return self.sha256 or f"{self.url} {self.size} {self.version}"

    def write(self, weights: Path) -> Path:
        """Write the note into the folder of the path that the weights would have, and return its path."""
        note = weights.with_name(weights.name + _NOTE_SUFFIX)
        header = base64.b64encode(self.header).decode("ascii")
        note.write_text(json.dumps({**asdict(self), "header": header}, indent=1), encoding="utf-8")
        return note

    @staticmethod
    def is_note(path: Path) -> bool:
        """Return whether a path is a note's."""
        return path.suffix == _NOTE_SUFFIX

    @staticmethod
    def find(path: Path) -> Path | None:
        """Return the path of a weight file, or of its note; None if neither exists."""
        note = path.with_name(path.name + _NOTE_SUFFIX)
        return path if path.is_file() else note if note.is_file() else None

    @classmethod
    def read(cls, note: Path) -> RemoteFile:
        """Return the file that a note describes.

        Raises:
            CheckpointError: if the file is not a note.
        """
        try:
            facts = read_json(note, limit=_LONGEST_NOTE)
            return cls(**{**facts, "header": base64.b64decode(facts["header"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{note}: is no note of weights on a server ({type(error).__name__}); remove its folder, "
                "and it is made again"
            ) from None


def find_main_dtype(specs: Iterable[TensorSpec]) -> str:
    """Return the dtype of most of the bytes of floating-point tensors; float32 without such tensors."""
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.mergeable:
            sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.nbytes
    return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def read_header(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """Return a safetensors file's tensors by name, and its metadata; also from a note of a file on a server.

    Raises:
        CheckpointError: if the file cannot be read or safetensors refuses it, or a tensor has a name that
            cannot be shown or an element type that torch does not have.
    """
    if RemoteFile.is_note(path):
        opening = RemoteFile.read(path).header
    else:
        try:
            with open_regular(path) as file:
                _require_sound(path, path)
                opening = file.read(8)
                opening += file.read(int.from_bytes(opening, "little"))
        except (OSError, ValueError) as error:  # a name with a NUL is no name of a file
            raise CheckpointError(f"{path}: cannot be read ({error})") from None
    header = json.loads(opening[8:])
    metadata = header.pop("__metadata__", None) or {}
    specs = {}
    for name, entry in header.items():
        if not name.isprintable():
            raise CheckpointError(
                f"{path}: tensor '{name}' has a name that cannot be shown; rename it first"
            )
        if entry["dtype"] not in _DTYPE_BY_CODE:
            raise CheckpointError(
                f"{path}: tensor '{name}' has an unknown element type '{entry['dtype']}'; convert it first"
            )
        offset = len(opening) + entry["data_offsets"][0]
        dtype = _DTYPE_BY_CODE[entry["dtype"]][0]
        specs[name] = TensorSpec(name, tuple(entry["shape"]), dtype, path, offset)
    return specs, metadata


def require_sound_header(url: str, opening: bytes, size: int) -> None:
    """Require that safetensors takes a file on a server, from its bytes before the tensors."""
    with tempfile.NamedTemporaryFile() as file:  # of the file's length, without its bytes
        file.write(opening)
        file.truncate(size)
        _require_sound(Path(file.name), url)


def _require_sound(path: Path, label: Path | str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np"):
            pass
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{label}: is truncated or no safetensors file ({error}); get the file again"
        ) from None


def encode_header(
    specs: Sequence[TensorSpec], metadata: Mapping[str, str], prefix: str = ""
) -> tuple[bytes, list[TensorSpec]]:
    """Return the header of a file with these tensors in this order, and the tensors as stored in the file.

    Names are stored without `prefix`.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset, offsets = 0, []
    for spec in specs:
        offsets.append(offset)
        offset += spec.nbytes
        header[spec.name.removeprefix(prefix)] = {
            "dtype": _CODE_BY_DTYPE[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offsets[-1], offset],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    opening = struct.pack("<Q", len(raw)) + raw
    stored = [
        replace(spec, name=spec.name.removeprefix(prefix), offset=len(opening) + offset)
        for spec, offset in zip(specs, offsets, strict=True)
    ]
    return opening, stored


def read_versions() -> dict[str, str]:
    """Return the versions of the packages that a result's bytes may depend on, without importing them."""
    version_by_name = {}
    for name in _PACKAGES:
        try:
            version_by_name[name] = version(name)
        except PackageNotFoundError:
            continue
    return version_by_name


def build_header_texts(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as header metadata: texts by key, with the versions of packages added.

    Values that are not text become JSON.
    """
    our_facts = provenance.get(PROVENANCE_KEY, {})
    if isinstance(our_facts, Mapping):
        provenance = {
            **provenance,
            PROVENANCE_KEY: {**our_facts, "versions": our_facts.get("versions", read_versions())},
        }
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in provenance.items()
    }


def read_provenance(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Parse the provenance in a header's metadata; None if it is missing or damaged."""
    try:
        provenance = json.loads(metadata.get(PROVENANCE_KEY, ""))
    except ValueError:
        return None
    return provenance if isinstance(provenance, dict) else None
