"""Weights in eight-bit floats with their scales, dequantised while they are read; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.errors import CheckpointError
from emberge.tensor_files.derived_tensor import DerivedTensor
from emberge.tensor_files.safetensors_header import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.tensor_files.derived_tensor import RowReader


BLOCK = 128
"""Number of rows and of columns of the blocks that share one number of a `weight_scale_inv`."""

STORED = "bfloat16"
"""Default dtype for storing a dequantised tensor; it represents every eight-bit float exactly."""

_FLOAT8 = "float8_e4m3fn"
_PER_BLOCK, _PER_ROW = "_scale_inv", "_scale"
# Scales of activations and of the key-value cache: for kernels that compute in eight bits, none of ours.
_RUNNING = ("input_scale", "output_scale", "activation_scale", "k_scale", "v_scale", "q_scale")
_SCHEMES = ("fp8", "compressed-tensors", "fbgemm_fp8", "modelopt")
# How other schemes name what they put in the place of a weight.
_PACKED = {
    "qweight": "gptq or awq",
    "qzeros": "gptq or awq",
    "weight_packed": "integers packed by compressed-tensors",
    "weight_zero_point": "asymmetric integers",
    "weight_shape": "integers packed by compressed-tensors",
    "absmax": "bitsandbytes",
    "quant_map": "bitsandbytes",
    "quant_state": "bitsandbytes",
    "SCB": "bitsandbytes",
    "weight_scale_2": "four-bit floats",
    "weight_global_scale": "four-bit floats",
}
_INSTEAD = "get the model in float32, bfloat16 or float16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSpec(DerivedTensor):
    """An eight-bit tensor times its scales; `file` and `offset` are those of the eight bits.

    `scale` has one number, one number per row or, with `blocks`, one number for each block of 128 × 128.
    """

    stored: TensorSpec
    scale: TensorSpec
    blocks: bool = False

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        width = into.shape[1]
        reader.read(self.stored, rows.start * width, into.view(-1))
        if self.blocks:
            into.mul_(self._read_scales(reader, rows, into))
        elif self.scale.elements == 1:
            reader.read(self.scale, 0, scale := into.new_empty(1))
            into.mul_(scale)
        else:
            reader.read(self.scale, rows.start, each := into.new_empty(len(rows)))
            into.mul_(each[:, None])

    def _read_scales(self, reader: RowReader, rows: range, like: Tensor) -> Tensor:
        """Return the scales of these rows, in the shape of `like`."""
        import torch

        blocks_per_row = self.scale.shape[1]
        first, last = rows.start // BLOCK, (rows.stop - 1) // BLOCK + 1
        grid = like.new_empty(last - first, blocks_per_row)
        reader.read(self.scale, first * blocks_per_row, grid.view(-1))
        places = torch.arange(rows.start, rows.stop) // BLOCK - first
        return grid[places].repeat_interleave(BLOCK, dim=1)[:, : like.shape[1]]


def dequantised(
    specs: Mapping[str, TensorSpec], config: Mapping[str, Any], folder: Path
) -> Mapping[str, TensorSpec]:
    """Return the tensors with eight-bit weights multiplied by their scales, and without the scales.

    Weights are e4m3 with `weight_scale` (one, or one a row: compressed-tensors) or `weight_scale_inv` (one
    for each 128 × 128: DeepSeek-V3, 2024, arXiv:2412.19437); both are factors.

    Raises:
        CheckpointError: if the scheme is another one, or a scale is missing or has an unexpected shape.
    """
    scheme = config.get("quantization_config") or config.get("compression_config")
    if isinstance(scheme, Mapping):
        _refuse_scheme(scheme, folder)
    _refuse_packed(specs, folder)
    float8_names = [name for name, spec in specs.items() if spec.dtype.startswith("float8")]
    if not float8_names:
        _refuse_integers(specs, folder)
        return specs
    result = dict(specs)
    for name in float8_names:
        result[name] = _pair_with_scale(name, specs, result, folder)
    return {n: s for n, s in result.items() if n.rpartition(".")[2] not in _RUNNING}


def _pair_with_scale(
    name: str, specs: Mapping[str, TensorSpec], left: dict[str, TensorSpec], folder: Path
) -> TensorSpec:
    spec = specs[name]
    if spec.dtype != _FLOAT8:
        raise CheckpointError(f"{folder}: '{name}' is {spec.dtype}, which is not read; {_INSTEAD}")
    for ending in (_PER_BLOCK, _PER_ROW):
        scale = specs.get(name + ending)
        if scale is not None:
            left.pop(scale.name, None)
            return _build_scaled_spec(spec, scale, ending == _PER_BLOCK, folder)
    raise CheckpointError(
        f"{folder}: '{name}' is {spec.dtype} and has no scale ({name}{_PER_ROW} or {name}{_PER_BLOCK}); "
        f"get the files again, or {_INSTEAD}"
    )


def _build_scaled_spec(
    spec: TensorSpec, scale: TensorSpec, inverse: bool, folder: Path
) -> ScaledSpec:
    rows = spec.shape[0] if spec.shape else 1
    blocks = inverse and scale.elements > 1
    if blocks:
        has_expected_shape = len(spec.shape) == 2 and scale.shape == tuple(
            -(-n // BLOCK) for n in spec.shape
        )
    else:
        has_expected_shape = scale.elements == 1 or scale.shape in ((rows,), (rows, 1))
    if not has_expected_shape or not (scale.mergeable and len(spec.shape) > 1):
        raise CheckpointError(
            f"{folder}: '{scale.name}' is {scale.dtype} {list(scale.shape)}, which scales no "
            f"{list(spec.shape)}; it may be one number, one a row, or (weight_scale_inv) one for each "
            f"{BLOCK} × {BLOCK}; {_INSTEAD}"
        )
    return ScaledSpec(
        spec.name,
        spec.shape,
        STORED,
        spec.file,
        spec.offset,
        stored=spec,
        scale=scale,
        blocks=blocks,
    )


def _refuse_scheme(scheme: Mapping[str, Any], folder: Path) -> None:
    method = str(scheme.get("quant_method", "unknown"))
    if method not in _SCHEMES:
        raise CheckpointError(
            f"{folder}: its weights are quantised by {method}, which is not read; {_INSTEAD}"
        )
    size = scheme.get("weight_block_size")
    if size is not None and list(size) != [BLOCK, BLOCK]:
        raise CheckpointError(
            f"{folder}: its scales are for blocks of {' × '.join(map(str, size))}, and {BLOCK} × {BLOCK} "
            f"alone are read; {_INSTEAD}"
        )


def _refuse_packed(specs: Mapping[str, TensorSpec], folder: Path) -> None:
    for name in specs:
        scheme = next((_PACKED[word] for word in name.split(".") if word in _PACKED), None)
        if scheme is not None:
            raise CheckpointError(
                f"{folder}: '{name}' is of weights quantised as {scheme}, which are not read; {_INSTEAD}"
            )


def _refuse_integers(specs: Mapping[str, TensorSpec], folder: Path) -> None:
    for name, spec in specs.items():
        if f"{name}{_PER_ROW}" in specs and not spec.mergeable:
            raise CheckpointError(
                f"{folder}: '{name}' is {spec.dtype} with scales, which is not read; {_INSTEAD}"
            )
