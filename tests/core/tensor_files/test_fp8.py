"""Weights in eight-bit floats go in as what they stand for and come out as plain ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.merging import MergeInput
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader
from emberge_merge import Linear
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support import tiny
from tests.support.merges import merge_models

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
BLOCK = 128


def per_tensor(weight: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """(eight bits, their scales by ending, what they stand for)."""
    scale = weight.abs().max() / LARGEST
    stored = (weight / scale).to(FP8)
    return stored, {"_scale": scale.reshape(1)}, stored.float() * scale


def per_channel(weight: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    scale = weight.abs().amax(dim=1, keepdim=True) / LARGEST
    stored = (weight / scale).to(FP8)
    return stored, {"_scale": scale.bfloat16()}, stored.float() * scale.bfloat16().float()


def per_block(weight: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    rows, columns = (-(-n // BLOCK) for n in weight.shape)
    scale = torch.rand(rows, columns) / 100 + 1e-3
    spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    spread = spread[: weight.shape[0], : weight.shape[1]]
    stored = (weight / spread).clamp(-LARGEST, LARGEST).to(FP8)
    return stored, {"_scale_inv": scale}, stored.float() * spread


SCHEMES = {"tensor": per_tensor, "channel": per_channel, "block": per_block}
CONFIGS: dict[str, dict[str, Any]] = {
    "tensor": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "channel": {"quant_method": "fbgemm_fp8"},
    "block": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model wide enough for more than one block of scales, none of whose edges is a block's."""
    folder = tmp_path_factory.mktemp("plain") / "bert"
    return tiny.checkpoint(
        folder, num_hidden_layers=1, hidden_size=160, intermediate_size=300, dtype="bfloat16"
    )


def quantised(plain: Path, out: Path, scheme: str) -> tuple[Path, dict[str, Tensor]]:
    """(the model with its linear layers in eight bits, all tensors as they should be read)."""
    shutil.copytree(plain, out)
    torch.manual_seed(0)
    stored: dict[str, Tensor] = {}
    expected: dict[str, Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        stored[name], expected[name] = tensor, tensor.float()
        if "encoder" in name and name.endswith("weight") and tensor.dim() == 2:
            stored[name], scales, expected[name] = SCHEMES[scheme](tensor.float())
            stored.update({name + ending: scale for ending, scale in scales.items()})
            stored[name.replace("weight", "input_scale")] = torch.ones(1)
    save_file(stored, out / "model.safetensors")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = CONFIGS[scheme]
    (out / "config.json").write_text(json.dumps(config))
    return out, expected


@pytest.mark.parametrize("scheme", SCHEMES)
def test_eight_bits_are_read_as_what_they_stand_for(
    scheme: str, plain: Path, tmp_path: Path
) -> None:
    folder, expected = quantised(plain, tmp_path / "fp8", scheme)
    specs = Checkpoint(folder).specs
    assert specs.keys() == expected.keys()  # scales are no tensors of the model
    with TensorReader() as reader:
        for name, tensor in expected.items():
            found = torch.empty(tensor.numel())
            reader.read(specs[name], 0, found)
            assert torch.equal(found, tensor.reshape(-1)), name
            middle = torch.empty(min(7, tensor.numel() - 1))
            reader.read(specs[name], 1, middle)
            assert torch.equal(middle, tensor.reshape(-1)[1 : 1 + middle.numel()]), name


@pytest.mark.parametrize(("scheme", "dtype"), [*((s, None) for s in SCHEMES), ("block", "float32")])
def test_what_comes_out_is_plain(scheme: str, dtype: Any, plain: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    folder, expected = quantised(plain, tmp_path / "fp8", scheme)
    out = tmp_path / "out"
    inputs = [MergeInput("a", folder), MergeInput("b", plain)]
    merge_models(inputs, strategy=[Linear()], out=out, out_dtype=dtype)
    found, other = load_file(out / "model.safetensors"), load_file(plain / "model.safetensors")
    assert found.keys() == other.keys()
    for name, tensor in found.items():
        mean = (expected[name] + other[name].float()) / 2
        assert torch.equal(tensor, mean.to(getattr(torch, dtype or "bfloat16"))), name
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config
    assert AutoModel.from_pretrained(out).dtype == getattr(torch, dtype or "bfloat16")


def test_a_copy_is_dequantised_too(plain: Path, tmp_path: Path) -> None:
    folder, expected = quantised(plain, tmp_path / "fp8", "block")
    name = "encoder.layer.0.output.dense.weight"
    state = load_file(plain / "model.safetensors")
    state.pop(name)
    lacking = shutil.copytree(plain, tmp_path / "lacking")
    save_file(state, lacking / "model.safetensors")
    inputs = [MergeInput("a", folder), MergeInput("b", lacking)]
    out = tmp_path / "out"
    merge_models(
        inputs,
        strategy=[Linear()],
        out=out,
        base=MergeInput("base", folder),
        missing="copy_base",
        template=folder,
    )
    assert torch.equal(load_file(out / "model.safetensors")[name], expected[name].bfloat16())


QUERY = "encoder.layer.0.attention.self.query.weight"
PACKED = QUERY.removesuffix("weight")
REFUSED: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "no scale": ({f"{QUERY}_scale": None}, f"'{QUERY}' is float8_e4m3fn and has no scale"),
    "groups": ({f"{QUERY}_scale": torch.ones(160, 5)}, r"\[160, 5\], which scales no \[160, 160\]"),
    "too few": ({f"{QUERY}_scale": torch.ones(3)}, r"\[3\], which scales no"),
    "odd blocks": (
        {f"{QUERY}_scale": None, f"{QUERY}_scale_inv": torch.ones(3, 3)},
        r"\[3, 3\], which scales no",
    ),
    "another float": (
        {QUERY: torch.ones(160, 160).to(torch.float8_e5m2)},
        "float8_e5m2, which is not",
    ),
    "integers": (
        {f"{PACKED}weight_packed": torch.ones(160, 20).int()},
        "packed by compressed-tensors",
    ),
    "gptq": ({f"{PACKED}qweight": torch.ones(20, 160).int()}, "gptq or awq"),
    "bitsandbytes": (
        {f"{QUERY}.quant_state.bitsandbytes__nf4": torch.ones(8).byte()},
        "quantised as bitsandbytes",
    ),
    "bitsandbytes, eight bits": ({f"{PACKED}SCB": torch.ones(160)}, "quantised as bitsandbytes"),
    "four-bit floats": ({f"{PACKED}weight_scale_2": torch.ones(1)}, "four-bit floats"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_schemes_are_refused_by_name_before_work(
    case: str, plain: Path, tmp_path: Path
) -> None:
    folder, _ = quantised(plain, tmp_path / "fp8", "tensor")
    changes, said = REFUSED[case]
    state: dict[str, Any] = {**load_file(folder / "model.safetensors"), **changes}
    save_file({k: v for k, v in state.items() if v is not None}, folder / "model.safetensors")
    inputs = [MergeInput("a", folder), MergeInput("b", plain)]
    with pytest.raises(CheckpointError, match=said) as caught:
        merge_models(inputs, strategy=[Linear()], out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "hqq", "aqlm"])
def test_a_config_of_another_scheme_is_refused(method: str, plain: Path, tmp_path: Path) -> None:
    folder, _ = quantised(plain, tmp_path / "fp8", "tensor")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"quantised by {method}, which is not read"):
        _ = Checkpoint(folder).specs


def test_blocks_of_another_size_are_refused(plain: Path, tmp_path: Path) -> None:
    folder, _ = quantised(plain, tmp_path / "fp8", "block")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [64, 64]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="blocks of 64 × 64, and 128 × 128 alone are read"):
        _ = Checkpoint(folder).specs


def test_integers_with_scales_are_refused(plain: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(plain, tmp_path / "int8")
    state = load_file(folder / "model.safetensors")
    state[QUERY] = torch.ones(160, 160, dtype=torch.int8)
    state[f"{QUERY}_scale"] = torch.ones(160, 1)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"'{QUERY}' is int8 with scales"):
        _ = Checkpoint(folder).specs
