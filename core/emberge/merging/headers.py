"""safetensors headers, read and written without loading anything.

A file is 8 bytes of header length, a JSON header, and the tensors' bytes. Everything that a header
claims is held against the file before a byte of a tensor is believed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError

__all__ = ["DTYPES", "TensorSpec", "encode_header", "read_header"]

# safetensors' names of element types: (torch's name, bytes an element).
DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
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
    """What is known of a tensor before its bytes are touched.

    `dtype` is torch's name; `offset` counts from the start of `file`, and is 0 for a tensor to be made.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path = Path()
    offset: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return DTYPES[_CODES[self.dtype]][1]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize

    @property
    def mergeable(self) -> bool:
        """Whether it holds plain floating-point numbers that may be averaged."""
        return self.dtype in ("float64", "float32", "float16", "bfloat16")

    def renamed(self, name: str) -> TensorSpec:
        """The same tensor under another name."""
        return replace(self, name=name)


def read_header(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """The tensors of a safetensors file and its metadata.

    Raises:
        CheckpointError: for a file that is truncated, or whose header is no header, names a tensor twice,
            or points outside the file or into another tensor.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise CheckpointError(f"{path}: {size} bytes are no safetensors file; {_AGAIN}")
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, _LONGEST_HEADER):
            raise CheckpointError(
                f"{path}: the header claims {length:,} bytes and the file has {size:,}: it is truncated "
                f"or no safetensors file; {_AGAIN}"
            )
        header = _parse(path, file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: the header's __metadata__ is no mapping; {_AGAIN}")
    specs = {name: _spec(path, name, entry, 8 + length) for name, entry in header.items()}
    _hold_to_file(path, list(specs.values()), 8 + length, size)
    return specs, {str(k): str(v) for k, v in metadata.items()}


_AGAIN = "get the file again"


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, value in pairs:
            if name in seen:
                raise CheckpointError(f"{path}: the header names '{name}' twice; {_AGAIN}")
            seen[name] = value
        return seen

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is no JSON ({error}); {_AGAIN}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is no mapping of tensors; {_AGAIN}")
    return header


def _spec(path: Path, name: str, entry: Any, data: int) -> TensorSpec:
    place = f"{path}: tensor '{name}'"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise CheckpointError(f"{place} has no dtype, shape and data_offsets; {_AGAIN}")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if code not in DTYPES:
        raise CheckpointError(f"{place} has an unknown element type {code!r}; convert it first")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{place} has a shape or offsets that are no counts; {_AGAIN}")
    spec = TensorSpec(name, tuple(shape), DTYPES[code][0], path, data + offsets[0])
    if offsets[1] - offsets[0] != spec.nbytes:
        raise CheckpointError(
            f"{place} is {code} {list(shape)}, {spec.nbytes:,} bytes, but the header gives it "
            f"{offsets[1] - offsets[0]:,}; {_AGAIN}"
        )
    return spec


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _hold_to_file(path: Path, specs: Sequence[TensorSpec], data: int, size: int) -> None:
    end, before = data, ""
    for spec in sorted(specs, key=lambda s: (s.offset, s.nbytes)):
        if spec.offset < end:
            raise CheckpointError(
                f"{path}: tensors '{before}' and '{spec.name}' share bytes; {_AGAIN}"
            )
        end, before = spec.offset + spec.nbytes, spec.name
        if end > size:
            raise CheckpointError(
                f"{path}: tensor '{spec.name}' ends at byte {end:,} and the file at {size:,}: it is "
                f"truncated or its header points outside it; {_AGAIN}"
            )


def encode_header(
    specs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """(the bytes that open a file which holds these tensors in this order, each tensor's offset in it)."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place, places = 0, {}
    for spec in specs:
        header[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [place, place + spec.nbytes],
        }
        places[spec.name] = place
        place += spec.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    opening = struct.pack("<Q", len(raw)) + raw
    return opening, {name: len(opening) + place for name, place in places.items()}
