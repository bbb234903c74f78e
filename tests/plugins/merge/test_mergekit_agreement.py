"""Agreement with mergekit 0.1.5 on random tiny models, whatever the blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import PerModel, PerTensor, Stage
from emberge.merging import MergeInput, merge_state_dicts
from emberge_merge.methods.sparse.sign_consensus import SignConsensus
from emberge_merge.methods.sparse.trim import Trim
from emberge_merge.methods.spherical.multi_slerp import MultiSlerp
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.chains import chain
from tests.support.merges import merge_models
from tests.support.tolerance import assert_exact, assert_near, likely, unit

with warnings.catch_warnings():
    # mergekit's dependencies warn about their own deprecations while they are imported.
    warnings.simplefilter("ignore")
    from mergekit.merge_methods.api import merge_state_dicts as theirs

State = Mapping[str, Tensor]
WEIGHTS = (0.5, 0.3, 0.2)
RUN = 8192  # numbers that are summed in float32


@pytest.fixture(scope="module", params=["bert", "xlm-roberta", "modernbert", "qwen3", "gemma3"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and three siblings of one architecture, whose changes have something in common."""
    root = tmp_path_factory.mktemp(request.param)
    base = tiny.checkpoint(root / "base", request.param, num_hidden_layers=2)
    tuned = tiny.checkpoint(root / "tuned", request.param, seed=9, like=base, num_hidden_layers=2)
    siblings = [
        tiny.checkpoint(root / name, request.param, seed=i, like=tuned, num_hidden_layers=2)
        for i, name in enumerate(("first", "second", "third"))
    ]
    return [base, *siblings]


@pytest.fixture(scope="module")
def states(family: list[Path]) -> list[State]:
    return [load_file(folder / "model.safetensors") for folder in family]


@pytest.fixture(scope="module")
def wide(states: list[State]) -> list[State]:
    """The same in float64."""
    return [{name: tensor.double() for name, tensor in state.items()} for state in states]


# Name: (our links, models, with a base, mergekit's method, its parameters)
CASES: dict[str, tuple[Sequence[Stage], int, bool, str, dict[str, Any]]] = {
    "linear": (chain("linear"), 3, False, "linear", {"weight": WEIGHTS}),
    "linear, not normalized": (
        chain("linear", normalize=False),
        3,
        False,
        "linear",
        {"weight": WEIGHTS, "normalize": False},
    ),
    "slerp": (chain("slerp", t=0.3, linear_threshold=0.9995), 2, False, "slerp", {"t": 0.3}),
    "nuslerp": (chain("nuslerp"), 2, False, "nuslerp", {"weight": WEIGHTS[:2]}),
    "nuslerp of deltas": (chain("nuslerp"), 2, True, "nuslerp", {"weight": WEIGHTS[:2]}),
    "multi_slerp": (
        chain("multi_slerp", mode="projected"),
        3,
        False,
        "multislerp",
        {"weight": WEIGHTS, "eps": 1e-30},  # it is added to norms
    ),
    "multi_slerp of deltas": (
        chain("multi_slerp", mode="projected", space="deltas"),
        3,
        True,
        "multislerp",
        {"weight": WEIGHTS, "eps": 1e-30},  # it is added to norms
    ),
    "karcher": (chain("karcher", max_iter=10, tol=1e-5), 3, False, "karcher", {}),
    "task_arithmetic": (
        chain("task_arithmetic", scale=0.7),
        3,
        True,
        "task_arithmetic",
        {"weight": WEIGHTS, "lambda": 0.7},
    ),
    "ties": (chain("ties", density=0.4), 3, True, "ties", {"weight": WEIGHTS, "density": 0.4}),
    "ties, not normalized": (
        chain("ties", density=0.4, normalize=False, scale=0.6),
        3,
        True,
        "ties",
        {"weight": WEIGHTS, "density": 0.4, "normalize": False, "lambda": 0.6},
    ),
    "breadcrumbs": (
        chain("breadcrumbs", density=0.6, gamma=0.1),
        3,
        True,
        "breadcrumbs",
        {"weight": WEIGHTS, "density": 0.6, "gamma": 0.1},
    ),
    "breadcrumbs, rescaled": (
        chain("breadcrumbs", density=0.6, gamma=0.1, rescale_mode="l1"),
        3,
        True,
        "breadcrumbs",
        {"weight": WEIGHTS, "density": 0.6, "gamma": 0.1, "rescale": True},
    ),
    "breadcrumbs_ties": (
        chain("breadcrumbs_ties", density=0.6, gamma=0.1),
        3,
        True,
        "breadcrumbs_ties",
        {"weight": WEIGHTS, "density": 0.6, "gamma": 0.1},
    ),
    "dare_linear at density 1": (
        chain("dare_linear"),
        3,
        True,
        "dare_linear",
        {"weight": WEIGHTS},
    ),
    "dare_ties at density 1": (chain("dare_ties"), 3, True, "dare_ties", {"weight": WEIGHTS}),
    "della at density 1": (chain("della"), 3, True, "della", {"weight": WEIGHTS}),
    "della_linear at density 1": (
        chain("della_linear"),
        3,
        True,
        "della_linear",
        {"weight": WEIGHTS},
    ),
    "sce": (chain("sce"), 3, True, "sce", {}),
    "sce of the places that differ most": (
        chain("sce", select_topk=0.3),
        3,
        True,
        "sce",
        {"select_topk": 0.3},
    ),
    "model_stock": (chain("model_stock", clamp=False), 3, True, "model_stock", {}),
    "passthrough": (chain("passthrough", scale=0.5), 1, False, "passthrough", {"scale": 0.5}),
}


def ours_of(case: str, states: Sequence[State], **settings: Any) -> State:
    links, count, based, _, parameters = CASES[case]
    base = states[0] if based else None
    weights = parameters.get("weight")
    dtype = "float64" if dtype_of(states) == torch.float64 else "float32"
    return merge_state_dicts(states[1 : count + 1], links, base, weights, dtype=dtype, **settings)


def dtype_of(states: Sequence[State]) -> torch.dtype:
    return next(iter(states[0].values())).dtype


def theirs_of(case: str, states: Sequence[State]) -> State:
    _, count, based, method, parameters = CASES[case]
    inputs = list(states[0 if based else 1 : count + 1])
    given = {
        name: {i + based: v for i, v in enumerate(value)} if name == "weight" else value
        for name, value in parameters.items()
    }
    base = 0 if based or method == "slerp" else None
    with torch.no_grad():
        return theirs(inputs, method, parameters=given, base=base, dtype=dtype_of(states))


# These measure a tensor, in float32 on mergekit's side: sums as long as it. Others add up a few models.
MEASURING = ("slerp", "karcher", "sce", "model_stock", "rescaled")


def hold(ours: State, found: State, case: str) -> None:
    assert ours.keys() == found.keys()
    measures = any(word in case for word in MEASURING)
    for name, tensor in found.items():
        addends = max(8, tensor.numel()) if measures else 8
        assert_near(ours[name], tensor, addends, name=name)


@pytest.mark.parametrize("case", CASES)
def test_we_agree(case: str, wide: list[State]) -> None:
    """In float64, which leaves no room for another formula."""
    assert_exact(ours_of(case, wide), theirs_of(case, wide))


@pytest.mark.parametrize("family", ["bert"], indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_we_agree_row_by_row(case: str, states: list[State]) -> None:
    names = {tensor.shape: name for name, tensor in states[0].items()}.values()  # one of each shape
    some = [{name: state[name] for name in names} for state in states]
    hold(ours_of(case, some, granule=1, block=1), theirs_of(case, some), case)


def test_the_runner_agrees_from_file_to_file(family: list[Path], tmp_path: Path) -> None:
    inputs = [
        MergeInput(folder.name, folder, PerTensor(weight))
        for folder, weight in zip(family[1:], WEIGHTS, strict=True)
    ]
    merge_models(
        inputs,
        strategy=[Trim(density=PerModel(0.4)), SignConsensus()],
        base=MergeInput("base", family[0]),
        out=tmp_path / "merged",
    )
    written = load_file(tmp_path / "merged" / "model.safetensors")
    found = theirs_of("ties", [load_file(f / "model.safetensors") for f in family])
    for name, tensor in found.items():
        assert_near(written[name], tensor, addends=8, name=name)


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
    # A length is a root, which halves relative errors, and those of runs are of either sign.
    runs = 4000 * 1000 / RUN
    assert float(abs(ours - exact) / exact) < likely(RUN) / 2 / runs**0.5 + unit()


def test_equal_changes_are_kept_in_the_order_of_the_tensor() -> None:
    """mergekit's choice among equal magnitudes is whatever its sort leaves; ours is the first ones."""
    delta = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.5, 0.1])
    base = {"w": torch.zeros(6)}
    links = [Trim(density=PerModel(0.5)), SignConsensus()]
    kept = merge_state_dicts([{"w": delta}], links, base)["w"]
    assert kept.tolist() == [0.5, -0.5, 0.5, 0.0, 0.0, 0.0]
