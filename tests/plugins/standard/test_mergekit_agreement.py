"""Agreement with mergekit 0.1.5 on random tiny models, in float32, whatever the blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import MergeInput, PerModel, PerTensor, Stage, merge_checkpoints
from emberge.merging.memory import merge_state_dicts
from emberge_standard.merging.karcher import Karcher
from emberge_standard.merging.linear import Linear
from emberge_standard.merging.model_stock import ModelStock
from emberge_standard.merging.multi_slerp import MultiSlerp
from emberge_standard.merging.nuslerp import Nuslerp
from emberge_standard.merging.sign_consensus import SignConsensus
from emberge_standard.merging.slerp import Slerp
from emberge_standard.merging.task_arithmetic import TaskArithmetic
from emberge_standard.merging.trim import Trim
from safetensors.torch import load_file
from torch import Tensor

from tests import tiny

with warnings.catch_warnings():
    # mergekit's dependencies warn about their own deprecations while they are imported.
    warnings.simplefilter("ignore")
    from mergekit.merge_methods.api import merge_state_dicts as theirs

State = Mapping[str, Tensor]
WEIGHTS = (0.5, 0.3, 0.2)
EVERYTHING = 1 << 18


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and three siblings of one architecture."""
    root = tmp_path_factory.mktemp(request.param)
    base = tiny.checkpoint(root / "base", request.param)
    siblings = [
        tiny.checkpoint(root / f"sibling{i}", request.param, seed=i, like=base) for i in (1, 2, 3)
    ]
    return [base, *siblings]


@pytest.fixture(scope="module")
def states(family: list[Path]) -> list[State]:
    return [load_file(folder / "model.safetensors") for folder in family]


def per_model(values: Sequence[float], *, based: bool) -> dict[int, float]:
    return {i + based: value for i, value in enumerate(values)}


# Name: (our links, models, with a base, mergekit's method, its parameters)
CASES: dict[str, tuple[Sequence[Stage], int, bool, str, dict[str, Any]]] = {
    "linear": ([Linear()], 3, False, "linear", {"weight": per_model(WEIGHTS, based=False)}),
    "slerp": ([Slerp(t=PerTensor(0.3), linear_threshold=0.9995)], 2, False, "slerp", {"t": 0.3}),
    "nuslerp": ([Nuslerp()], 2, False, "nuslerp", {"weight": per_model(WEIGHTS[:2], based=False)}),
    "nuslerp of deltas": (
        [Nuslerp()],
        2,
        True,
        "nuslerp",
        {"weight": per_model(WEIGHTS[:2], based=True)},
    ),
    "nuslerp by row": (
        [Nuslerp(granularity="row")],
        2,
        False,
        "nuslerp",
        {"weight": per_model(WEIGHTS[:2], based=False), "nuslerp_flatten": False},
    ),
    "nuslerp by column": (
        [Nuslerp(granularity="column")],
        2,
        False,
        "nuslerp",
        {
            "weight": per_model(WEIGHTS[:2], based=False),
            "nuslerp_flatten": False,
            "nuslerp_row_wise": True,
        },
    ),
    "multi_slerp": (
        [MultiSlerp(mode="projected")],
        3,
        False,
        "multislerp",
        {"weight": per_model(WEIGHTS, based=False)},
    ),
    "multi_slerp of deltas": (
        [MultiSlerp(mode="projected", space="deltas")],
        3,
        True,
        "multislerp",
        {"weight": per_model(WEIGHTS, based=True)},
    ),
    "karcher": ([Karcher(max_iter=10, tol=1e-5)], 3, False, "karcher", {}),
    "task_arithmetic": (
        [TaskArithmetic(scale=PerTensor(0.7))],
        3,
        True,
        "task_arithmetic",
        {"weight": per_model(WEIGHTS, based=True), "lambda": 0.7},
    ),
    "ties": (
        [Trim(density=PerModel(0.4)), SignConsensus()],
        3,
        True,
        "ties",
        {"weight": per_model(WEIGHTS, based=True), "density": 0.4},
    ),
    "ties, not normalized": (
        [Trim(density=PerModel(0.4)), SignConsensus(normalize=False, scale=PerTensor(0.6))],
        3,
        True,
        "ties",
        {
            "weight": per_model(WEIGHTS, based=True),
            "density": 0.4,
            "normalize": False,
            "lambda": 0.6,
        },
    ),
    "model_stock": ([ModelStock(clamp=False)], 3, True, "model_stock", {}),
    "model_stock by row": (
        [ModelStock(clamp=False, granularity="row")],
        3,
        True,
        "model_stock",
        {"filter_wise": True},
    ),
}


def both(case: str, states: Sequence[State], **settings: int) -> tuple[State, State]:
    links, count, based, method, parameters = CASES[case]
    models = states[1 : count + 1]
    weights = None if "weight" not in parameters else list(parameters["weight"].values())
    ours = merge_state_dicts(models, links, states[0] if based else None, weights, **settings)
    inputs = [states[0], *models] if based else models
    base = 0 if based or method == "slerp" else None
    with torch.no_grad():
        found = theirs(list(inputs), method, parameters=parameters, base=base, dtype=torch.float32)
    return ours, found


@pytest.mark.parametrize("granule", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("case", CASES)
def test_we_agree(case: str, granule: int, states: list[State]) -> None:
    ours, found = both(case, states, granule=granule, block=granule)
    assert ours.keys() == found.keys()
    for name, tensor in found.items():
        off = float((ours[name] - tensor).abs().max()) / float(tensor.abs().max())
        assert off <= 1e-6, f"{name} is off by {off:.1e}"


def test_the_runner_agrees_from_file_to_file(family: list[Path], tmp_path: Path) -> None:
    inputs = [
        MergeInput(folder.name, folder, PerTensor(weight))
        for folder, weight in zip(family[1:], WEIGHTS, strict=True)
    ]
    merge_checkpoints(
        inputs,
        strategy=[Trim(density=PerModel(0.4)), SignConsensus()],
        base=MergeInput("base", family[0]),
        out=tmp_path / "merged",
    )
    written = load_file(tmp_path / "merged" / "model.safetensors")
    _, found = both("ties", [load_file(f / "model.safetensors") for f in family])
    for name, tensor in found.items():
        assert torch.allclose(written[name], tensor, rtol=0, atol=1e-6 * float(tensor.abs().max()))


def test_mergekits_multislerp_is_the_normalised_mean_and_not_the_formula() -> None:
    """Its projections onto the tangent space sum to zero, so `log`, the printed formula, differs."""
    states = [{"w": torch.tensor(v)} for v in ([3.0, 0, 0], [0.0, 1, 0], [0.0, 0, 2])]
    weights = [1 / 6, 2 / 6, 3 / 6]
    found = theirs(states, "multislerp", parameters={"weight": dict(enumerate(weights))})["w"]
    projected = merge_state_dicts(states, [MultiSlerp(mode="projected")], None, weights)["w"]
    printed = merge_state_dicts(states, [MultiSlerp()], None, weights)["w"]
    torch.testing.assert_close(found, projected)
    assert float((found - printed).abs().max()) > 0.02


@pytest.mark.parametrize("models", [2, 3])
def test_mergekit_fails_on_frozen_tensors_and_we_do_not(models: int) -> None:
    """multislerp of zero deltas: mergekit raises with three models; a tensor that no model changed."""
    frozen = [torch.ones(4, 4)] * models
    base = {"w": torch.ones(4, 4)}
    states = [{"w": t} for t in frozen]
    ours = merge_state_dicts(states, [MultiSlerp(space="deltas")], base)["w"]
    assert torch.equal(ours, torch.ones(4, 4))
    if models == 3:
        fails: Callable[[], Any] = lambda: theirs(  # noqa: E731
            [base, *states],
            "multislerp",
            parameters={"weight": {1: 1.0, 2: 1.0, 3: 1.0}},
            base=0,
        )
        with pytest.raises(ValueError, match="zero"):
            fails()


def test_the_mean_length_is_kept_to_float32_precision() -> None:
    """Sums of squares of millions of float32 numbers are kept in runs, and the runs in float64."""
    torch.manual_seed(1)
    models = [{"w": torch.randn(4000, 1000) * 0.02} for _ in range(2)]
    ours = merge_state_dicts(models, [MultiSlerp(mode="projected")])["w"].double().norm()
    exact = sum(m["w"].double().norm() for m in models) / 2
    assert float(abs(ours - exact) / exact) < 1e-6


def test_equal_changes_are_kept_in_the_order_of_the_tensor() -> None:
    """mergekit's choice among equal magnitudes is whatever its sort leaves; ours is the first ones."""
    delta = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.5, 0.1])
    base = {"w": torch.zeros(6)}
    links = [Trim(density=PerModel(0.5)), SignConsensus()]
    kept = merge_state_dicts([{"w": delta}], links, base)["w"]
    assert kept.tolist() == [0.5, -0.5, 0.5, 0.0, 0.0, 0.0]
