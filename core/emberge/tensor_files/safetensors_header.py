"""Headers of safetensors files: read, checked and written, with the provenance in them; loads no torch."""

from __future__ import annotations

import json
import math
import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import find_half_surrogate, open_regular
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
_LONGEST_NAME = 1000
_MOST_DIMENSIONS = 64  # of a tensor in torch
_FIELDS = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name, shape, dtype and place in a file, known before its bytes are read.

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

    def renamed(self, name: str) -> TensorSpec:
        """Return the same tensor under another name."""
        return replace(self, name=name)


def main_dtype(specs: Iterable[TensorSpec]) -> str:
    """Return the dtype of most of the bytes of floating-point tensors; float32 without such tensors."""
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.mergeable:
            sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.nbytes
    return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def read_header(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """Return a safetensors file's tensors by name, and its metadata; also from a note of a file on a server.

    These are refused beside what the reference implementation (safetensors 0.8) refuses: names that occur
    twice, are unprintable or are longer than 1,000 characters; element types smaller than a byte; tensors of
    more than 64 dimensions; empty tensors whose shape torch cannot count; and entries written as lists
    instead of mappings.

    Raises:
        CheckpointError: if the file cannot be read or is truncated, or its header is malformed, names a
            tensor twice, assigns bytes to no tensor, or points outside the file or into another tensor.
    """
    raw, size = _read_remote_header(path) if RemoteFile.is_note(path) else _read_raw_header(path)
    return _parse_specs(path, raw, size)


def parse_header(path: Path | str, opening: bytes, size: int) -> dict[str, TensorSpec]:
    """Return the tensors of a file of `size` bytes by name, from the file's bytes before the tensors.

    Raises:
        CheckpointError: as `read_header`.
    """
    return _parse_specs(path, opening[8 : 8 + _read_length(path, opening[:8], size)], size)[0]


def _parse_specs(
    path: Path | str, raw: bytes, size: int
) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    header = _parse_object(path, raw)
    metadata = _parse_metadata(path, header.pop("__metadata__", None))
    data = 8 + len(raw)
    file = Path(path)
    for name, entry in header.items():
        if problem := _check_entry(name, entry):
            raise CheckpointError(f"{path}: tensor '{name}' {problem}")
    specs = {name: _build_spec(file, name, entry, data) for name, entry in header.items()}
    _require_in_file(path, list(specs.values()), data, size)
    return specs, metadata


_AGAIN = "get the file again"


def header_size(path: Path | str, opening: bytes, size: int) -> int:
    """Return the number of bytes before the first tensor, from a file's first 8 bytes and its size.

    Raises:
        CheckpointError: if these bytes do not begin a header.
    """
    return 8 + _read_length(path, opening, size)


def _read_raw_header(path: Path) -> tuple[bytes, int]:
    """Return the unparsed header of a file, and the file's size."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            return file.read(_read_length(path, file.read(8), size)), size
    except (OSError, ValueError) as error:  # a name with a NUL is no name of a file
        raise CheckpointError(f"{path}: cannot be read ({error})") from None


def _read_remote_header(note: Path) -> tuple[bytes, int]:
    remote = RemoteFile.read(note)
    return remote.header[8 : 8 + _read_length(note, remote.header[:8], remote.size)], remote.size


def parse_json(raw: bytes) -> Any:
    """Return the value of JSON text, parsed strictly: no repeated names, no NaN, no broken text.

    Raises:
        ValueError: if the text is not such JSON.
    """
    try:
        content = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_require_unique,
            parse_constant=_parse_number,
            parse_float=_parse_number,
        )
        half_surrogate = find_half_surrogate(raw, content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if half_surrogate is not None:
        raise ValueError(f"it has {half_surrogate}, half a surrogate pair, which is no character")
    return content


def _require_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value_by_name = dict(pairs)
    if len(value_by_name) < len(pairs):
        count = Counter(name for name, _ in pairs)
        repeated_name = next(name for name, times in count.items() if times > 1)
        raise ValueError(f"it names '{repeated_name}' twice")
    return value_by_name


def _parse_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number")
    return value


def _read_length(path: Path | str, start: bytes, size: int) -> int:
    if len(start) < 8:
        raise CheckpointError(f"{path}: {size} bytes are no safetensors file; {_AGAIN}")
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, _LONGEST_HEADER):
        raise CheckpointError(
            f"{path}: the header claims {length:,} bytes and the file has {size:,}: it is truncated "
            f"or no safetensors file; {_AGAIN}"
        )
    return int(length)


def _parse_object(path: Path | str, raw: bytes) -> dict[str, Any]:
    try:
        header = parse_json(raw)
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is no JSON ({error}); {_AGAIN}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is no mapping of tensors; {_AGAIN}")
    return header


def _parse_metadata(path: Path | str, found: Any) -> dict[str, str]:
    found = {} if found is None else found
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise CheckpointError(f"{path}: the header's __metadata__ is no mapping of texts; {_AGAIN}")
    return found


def _build_spec(file: Path, name: str, entry: Mapping[str, Any], data: int) -> TensorSpec:
    offset = data + entry["data_offsets"][0]
    return TensorSpec(name, tuple(entry["shape"]), DTYPES[entry["dtype"]][0], file, offset)


def _check_entry(name: str, entry: Any) -> str | None:
    """Return the problem of a tensor's entry; None if it is valid."""
    if len(name) > _LONGEST_NAME or not name.isprintable():
        return "has a name that cannot be shown; rename it first"
    if not isinstance(entry, dict) or not entry.keys() >= _FIELDS:
        return f"has no dtype, shape and data_offsets; {_AGAIN}"
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        shown_code = code if isinstance(code, str) else type(code).__name__
        return f"has an unknown element type '{shown_code}'; convert it first"
    if not _is_list_of_counts(shape) or not _is_list_of_counts(offsets) or len(offsets) != 2:
        return f"has a shape or offsets that are no counts; {_AGAIN}"
    if len(shape) > _MOST_DIMENSIONS or math.prod(max(1, n) for n in shape) >= 2**60:
        return f"has a shape that no tensor can have; {_AGAIN}"
    nbytes = math.prod(shape) * DTYPES[code][1]
    if offsets[1] - offsets[0] != nbytes:
        return (
            f"is {code} {shape}, {nbytes:,} bytes, but the header gives it "
            f"{offsets[1] - offsets[0]:,}; {_AGAIN}"
        )
    return None


def _is_list_of_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _require_in_file(path: Path | str, specs: Sequence[TensorSpec], data: int, size: int) -> None:
    """Require that every byte after the header belongs to exactly one tensor."""
    byte_ranges = sorted((spec.offset, spec.offset + spec.nbytes, spec.name) for spec in specs)
    for _, stop, name in byte_ranges:
        if stop > size:
            raise CheckpointError(
                f"{path}: tensor '{name}' ends at byte {stop:,} and the file at {size:,}: "
                f"it is truncated or its header points outside it; {_AGAIN}"
            )
    end, before = data, ""
    for start, stop, name in byte_ranges:
        if start < end:
            raise CheckpointError(f"{path}: tensors '{before}' and '{name}' share bytes; {_AGAIN}")
        if start > end:
            raise CheckpointError(
                f"{path}: {start - end:,} bytes before tensor '{name}' belong to no tensor; "
                f"{_AGAIN}"
            )
        end, before = stop, name
    if end < size:
        raise CheckpointError(
            f"{path}: {size - end:,} bytes at its end belong to no tensor; {_AGAIN}"
        )


def encode_header(
    specs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file with these tensors in this order, and each tensor's offset."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset, places = 0, {}
    for spec in specs:
        header[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        places[spec.name] = offset
        offset += spec.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    opening = struct.pack("<Q", len(raw)) + raw
    return opening, {name: len(opening) + offset for name, offset in places.items()}


def versions() -> dict[str, str]:
    """Return the versions of the packages that a result's bytes may depend on, without importing them."""
    version_by_name = {}
    for name in _PACKAGES:
        try:
            version_by_name[name] = version(name)
        except PackageNotFoundError:
            continue
    return version_by_name


def header_texts(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as header metadata: texts by key, with the versions of packages added.

    Values that are not text become JSON.
    """
    our_facts = provenance.get(HEADER, {})
    if isinstance(our_facts, Mapping):
        provenance = {
            **provenance,
            HEADER: {**our_facts, "versions": our_facts.get("versions", versions())},
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
