"""Headers of safetensors files: read, checked and written, with the provenance in them; loads no torch."""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import open_regular
from emberge.tensor_files.remote_file import RemoteFile

HEADER = "emberge"
"""The key of a safetensors header under which the provenance is kept, as JSON."""
_PACKAGES = ("emberge", "torch", "transformers", "safetensors")
WEIGHTS = "model.safetensors"
# safetensors' names of element types: (torch's name, bytes an element).
DTYPES: dict[str, tuple[str, int]] = {
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

_CODES = {name: code for code, (name, _) in DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # the limit of the reference implementation


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
        return DTYPES[_CODES[self.dtype]][1]

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
                opening = file.read(8)
                opening += file.read(find_header_size(path, opening, path.stat().st_size) - 8)
        except (OSError, ValueError) as error:  # a name with a NUL is no name of a file
            raise CheckpointError(f"{path}: cannot be read ({error})") from None
        _require_sound(path, path)
    header = json.loads(opening[8:])
    metadata = header.pop("__metadata__", None) or {}
    for name, entry in header.items():
        if not name.isprintable():
            raise CheckpointError(
                f"{path}: tensor '{name}' has a name that cannot be shown; rename it first"
            )
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(
                f"{path}: tensor '{name}' has an unknown element type '{entry['dtype']}'; convert it first"
            )
    return {
        name: TensorSpec(
            name,
            tuple(entry["shape"]),
            DTYPES[entry["dtype"]][0],
            path,
            len(opening) + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }, metadata


def find_header_size(path: Path | str, opening: bytes, size: int) -> int:
    """Return the number of bytes before the first tensor, from a file's first 8 bytes and its size."""
    length = int.from_bytes(opening[:8], "little")
    if len(opening) < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise CheckpointError(
            f"{path}: is truncated or no safetensors file, as its header has {length:,} bytes and the "
            f"file has {size:,}; get the file again"
        )
    return 8 + length


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
    specs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file with these tensors in this order, and each tensor's offset."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset, offsets = 0, {}
    for spec in specs:
        header[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offsets[spec.name] = offset
        offset += spec.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    opening = struct.pack("<Q", len(raw)) + raw
    return opening, {name: len(opening) + offset for name, offset in offsets.items()}


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
    our_facts = provenance.get(HEADER, {})
    if isinstance(our_facts, Mapping):
        provenance = {
            **provenance,
            HEADER: {**our_facts, "versions": our_facts.get("versions", read_versions())},
        }
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in provenance.items()
    }


def read_provenance(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Parse the provenance in a header's metadata; None if it is missing or damaged."""
    try:
        provenance = json.loads(metadata.get(HEADER, ""))
    except ValueError:
        return None
    return provenance if isinstance(provenance, dict) else None
