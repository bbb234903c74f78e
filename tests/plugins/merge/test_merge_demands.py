"""What the links of a merge need, and what their options may be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from emberge import Pass, PerTensor, Stage
from emberge.contracts import Options
from emberge_codiemb import LayerSoftmax
from emberge_merge.methods.fisher import Fisher
from emberge_merge.methods.group import Group
from emberge_merge.methods.weighted_sums import Linear

from tests.support.chains import STRATEGIES, TRANSFORMS, blocks_of, made

LINKS: dict[str, type[Stage]] = {
    name: kind
    for name, kind in {**TRANSFORMS, **STRATEGIES, "layer_softmax": LayerSoftmax}.items()
    if isinstance(kind, type)
}
# What cannot be left out.
NEEDED: dict[str, dict[str, Any]] = {
    "fisher": {"statistics": ()},
    "group": {"by": Linear()},
    "keep_base": {"keep": 0.5, "by": Linear()},
    "regmean": {"statistics": ()},
}
# Numbers that may differ by tensor or model: the default, and the range.
NUMBERS: dict[str, dict[str, tuple[float, tuple[float, float] | None]]] = {
    "drop": {"density": (1.0, (0, 1))},
    "drop_by_rank": {"density": (1.0, (0, 1)), "epsilon": (0.15, (0, 0.5))},
    "iso_c": {"scale": (1.0, None)},
    "layer_softmax": {},
    "passthrough": {"scale": (1.0, None)},
    "select_variance": {"select_topk": (1.0, (0, 1))},
    "sign_consensus": {"scale": (1.0, None)},
    "slerp": {"t": (0.5, (0, 1))},
    "task_arithmetic": {"scale": (1.0, None)},
    "trim": {"density": (0.5, (0, 1))},
    "trim_outliers": {"density": (1.0, (0, 1)), "gamma": (0.01, (0, 1))},
    "tsv_m": {"scale": (1.0, None)},
    "wudi": {"scale": (1.0, None)},
}


# What else may be chosen.
CHOICES: dict[str, dict[str, Any]] = {
    "energy_weights": {"least_energy": 0.0},
    "fisher": {"normalise": "model"},
    "karcher": {"max_iter": 100, "tol": 1e-10},
    "layer_softmax": {"temperature": 1.0, "normalise": "none", "deltas": None},
    "linear": {"normalize": True},
    "model_stock": {"clamp": True},
    "multi_slerp": {"mode": "log", "space": "weights"},
    "regmean": {"off_diagonal": 0.9},
    "rescale": {"rescale_mode": "l1"},
    "sign_consensus": {"normalize": True, "elect": "weighted", "consensus_mean": "weighted"},
    "slerp": {"linear_threshold": None},
    "task_arithmetic": {"normalize": False},
}


def link(name: str, **options: Any) -> Stage:
    return made(LINKS[name], {**NEEDED.get(name, {}), **options})


@pytest.mark.parametrize(
    ("name", "options", "needs"),
    [
        ("linear", {"normalize": False}, {"weight_role": "scale"}),
        ("task_arithmetic", {"normalize": True}, {"weight_role": "share"}),
        ("multi_slerp", {"space": "deltas"}, {"base_policy": "required"}),
        ("fisher", {}, {"passes": (Pass(scope="model"),)}),
        ("fisher", {"normalise": "tensor"}, {"passes": (Pass(),)}),
        ("fisher", {"normalise": "none"}, {"passes": ()}),
        ("rescale", {"rescale_mode": "none"}, {"passes": ()}),
        ("rescale", {"rescale_mode": "inverse_density"}, {"passes": ()}),
    ],
)
def test_options_change_what_a_link_needs(
    name: str, options: dict[str, Any], needs: dict[str, Any]
) -> None:
    stage = link(name, **options)
    assert {what: getattr(stage, what) for what in needs} == needs


@pytest.mark.parametrize("name", sorted(set(LINKS) - set(NEEDED)))
def test_numbers_have_documented_defaults(name: str) -> None:
    found = {option: value.plain() for option, value in link(name).schedules().items()}
    assert found == {option: default for option, (default, _) in NUMBERS.get(name, {}).items()}


@pytest.mark.parametrize("name", LINKS)
def test_choices_have_documented_defaults(name: str) -> None:
    stage = link(name)
    left = {f.name for f in dataclasses.fields(stage)}
    left -= {*stage.schedules(), *NEEDED.get(name, {})}
    assert {option: getattr(stage, option) for option in left} == CHOICES.get(name, {})


@pytest.mark.parametrize(
    ("name", "option", "within"),
    [(n, o, within) for n, of in NUMBERS.items() for o, (_, within) in of.items() if within],
)
def test_numbers_have_a_range(name: str, option: str, within: tuple[float, float]) -> None:
    """What a recipe gives is held to the range of the default."""
    given = link(name).schedules()[option]
    assert isinstance(given, PerTensor)
    assert given.within == within


def test_a_group_needs_what_its_strategy_needs() -> None:
    inner = Fisher(statistics=())
    outer = Group(by=inner)
    assert [one.scope for one in outer.passes] == [one.scope for one in inner.passes]
    assert (outer.base_policy, outer.weight_role) == (inner.base_policy, inner.weight_role)


@pytest.mark.parametrize("name", ["karcher", "multi_slerp", "slerp", "nuslerp", "sequential_slerp"])
def test_only_directions_that_cancel_out_are_reported(name: str) -> None:
    first, stage = torch.tensor([1.0, 2.0]).double(), link(name)
    for second, says in ((torch.tensor([2.0, 1.0]).double(), ""), (-3 * first, "cancel out")):
        (block,) = blocks_of("w", [first, second], None, options=Options(t=0.5))
        warning = stage.conclude(block, [stage.measure(block, [])]).get("warning", "")
        assert says in warning
        assert bool(says) == bool(warning)
