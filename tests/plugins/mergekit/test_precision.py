"""What is computed in and what is stored: `dtype` and `out_dtype`, and models that are not float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.plugins.mergekit.documented import CONFIGS, filled
from tests.plugins.mergekit.peer import (
    assert_same,
    check_against_mergekit,
    family,
    ours,
    state_of,
    theirs,
)
from tests.support.tolerance import gamma, likely

# One step of bfloat16, which has eight bits of a number.
STEP = 2**-7
SMOOTH = ("weighted mean", "slerp from the second model", "multi-slerp of changes", "arcee fusion")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return family(tmp_path_factory.mktemp("llamas"))


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same models, stored in bfloat16."""
    found = family(tmp_path_factory.mktemp("halved"))
    for folder in found.values():
        path = folder / "model.safetensors"
        state = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
        save_file(state, path, metadata={"format": "pt"})
    return found


@pytest.mark.parametrize("key", ["dtype", "out_dtype"])
def test_the_result_is_stored_in_the_requested_dtype(
    key: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """mergekit rounds at each step of bfloat16; here it is rounded once, at the end."""
    text = filled(CONFIGS["weighted mean"], models, dtype="") + f"{key}: bfloat16\n"
    made, other = state_of(ours(text, tmp_path)), state_of(theirs(text, tmp_path / "theirs"))
    # A step of bfloat16 where the last bit of float32 decides, or one for each of mergekit's operations.
    assert_same(made, other, within=STEP if key == "out_dtype" else gamma(5, torch.bfloat16))
    exact = state_of(ours(filled(CONFIGS["weighted mean"], models), tmp_path / "exact"))
    assert all(torch.equal(made[name], exact[name].bfloat16()) for name in made)


def unlike(found: Tensor, expected: Tensor) -> Tensor:
    """The elements that are further apart than one step of bfloat16."""
    float32 = 2 * likely(expected.numel()) * float(expected.abs().max())
    near = STEP * expected.double().abs() + float32
    return (found.double() - expected.double()).abs() > near


@pytest.mark.parametrize("case", SMOOTH)
def test_models_in_bfloat16_give_mergekits_float32_result_rounded(
    case: str, halved: dict[str, Path], tmp_path: Path
) -> None:
    """It is never more than one step away, where the last bit of a float32 decides how it is rounded."""
    text = filled(CONFIGS[case], halved, dtype="")
    made = state_of(ours(f"{text}dtype: bfloat16\n", tmp_path))
    widened = f"{text}dtype: float32\nout_dtype: bfloat16\n"
    other = state_of(theirs(widened, tmp_path / "theirs"))
    assert {tensor.dtype for tensor in made.values()} == {torch.bfloat16}
    assert not [name for name in other if unlike(made[name], other[name]).any()]


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_what_needs_no_rounding_on_the_way_is_mergekits_to_the_bit(
    dtype: str, halved: dict[str, Path], tmp_path: Path
) -> None:
    text = filled(CONFIGS["a model weakened by filter"], halved, dtype=dtype)
    check_against_mergekit(text, tmp_path, within=0.0)
