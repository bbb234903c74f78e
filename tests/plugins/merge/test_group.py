"""Groups are merged first, each by itself, and nothing is written in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from emberge import Block, CheckpointError, MergeStrategy, PerModel, PerTensor, Stage, Stats
from emberge.contracts import Options
from emberge.merging import MergeInput, MergeRequest, plan_merge
from emberge_merge.methods.group import Group
from safetensors.torch import load_file
from torch import Tensor

from tests.support.chains import EVERYTHING, blocks_of, chain, merge
from tests.support.merges import merge_models
from tests.support.tolerance import assert_combined

State = dict[str, Tensor]
GROUPS = ("a", "b", "a", "b", "b")
SHAPES = {"layers.0.weight": (5, 4), "layers.0.bias": (4,), "layers.1.weight": (3, 4), "scale": ()}


def states() -> tuple[State, list[State]]:
    torch.manual_seed(8)
    base = {n: torch.randn(s, dtype=torch.float64) for n, s in SHAPES.items()}
    shared = {n: 0.3 * torch.randn_like(t) for n, t in base.items()}
    return base, [
        {n: t + shared[n] + 0.3 * torch.randn_like(t) for n, t in base.items()} for _ in GROUPS
    ]


# Name: (the strategy inside groups, what merges the groups)
CHAINS: dict[str, tuple[Stage, Sequence[Stage]]] = {
    "linear, then ties": (chain("linear")[0], chain("ties", density=0.5)),
    "linear, then slerp": (chain("linear")[0], chain("slerp", t=0.25)),
    "karcher, then slerp": (chain("karcher")[0], chain("slerp", t=0.25)),
    "model_stock, then arithmetic": (chain("model_stock")[0], chain("task_arithmetic")),
    "multi_slerp, then karcher": (chain("multi_slerp")[0], chain("karcher")),
    "sign_consensus": (chain("sign_consensus")[0], chain("multi_slerp", space="deltas")),
}


@pytest.mark.parametrize("groups", [GROUPS, sorted(GROUPS)], ids=["mixed", "neighbours"])
@pytest.mark.parametrize("rows", [1, EVERYTHING], ids=["one row", "everything"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_group_is_merged_as_if_alone(name: str, rows: int, groups: Sequence[str]) -> None:
    inside, last = CHAINS[name]
    base, models = states()
    weights = (0.5, 0.3, 0.2, 0.4, 0.6)
    links = [Group(by=inside), *last]
    found = merge(links, models, base, groups=groups, weights=weights, rows=rows)
    soups = [
        merge(
            [inside],
            [m for m, g in zip(models, groups, strict=True) if g == group],
            base,
            weights=[w for w, g in zip(weights, groups, strict=True) if g == group],
        )
        for group in ("a", "b")
    ]
    expected = merge(last, soups, base)
    for tensor, value in expected.items():
        torch.testing.assert_close(found[tensor], value, rtol=1e-9, atol=1e-12)


def test_averages_of_groups_are_added_up_when_they_are_asked_for() -> None:
    """A mean of means needs no rows of the means; another link gets them, and may replace them."""
    _, models = states()
    name = "layers.0.weight"
    inside = Options(by=Options())
    first, second = (
        [m[name] for m, g in zip(models, GROUPS, strict=True) if g == group] for group in "ab"
    )
    soups = torch.stack([torch.stack(one).mean(0) for one in (first, second)])
    tensors = [m[name] for m in models]
    (block,) = blocks_of(name, tensors, soups[0], groups=GROUPS, options=inside)
    grouped = Group(by=chain("linear")[0]).apply(block, [])
    torch.testing.assert_close(grouped.combine([0.3, 0.7]), 0.3 * soups[0] + 0.7 * soups[1])
    with pytest.raises(ValueError, match="3 coefficients for 2 models"):
        grouped.combine([1.0, 0.0, 0.0])
    assert "tensors" not in vars(grouped.rows)
    torch.testing.assert_close(grouped.tensors, soups)
    torch.testing.assert_close(grouped.combine([0.3, 0.7]), 0.3 * soups[0] + 0.7 * soups[1])
    moved = grouped.with_deltas(soups)
    torch.testing.assert_close(moved.combine([0.0, 1.0]), soups[0] + soups[1])
    other = grouped.with_tensors(2 * soups)
    assert torch.equal(other.combine([1.0, 0.0]), 2 * soups[0])


def test_one_model_sets_its_own_numbers_inside_a_group(
    bert: Path, berts: Sequence[Path], tmp_path: Path
) -> None:
    """Numbers per model reach the links before the group, each its own model."""
    inputs = [
        MergeInput("one", berts[0], group="a", options={"trim": {"density": PerModel(0.0)}}),
        MergeInput("two", berts[1], group="b"),
    ]
    links = [*chain("trim", density=1.0), Group(by=chain("linear")[0]), *chain("linear")]
    merge_models(inputs, strategy=links, base=MergeInput("base", bert), out=tmp_path / "out")
    merged, base, second = (
        load_file(f / "model.safetensors") for f in (tmp_path / "out", bert, berts[1])
    )
    for name, tensor in merged.items():
        assert_combined(tensor, [base[name], second[name], base[name]], [1, 0.5, -0.5])


@dataclass(frozen=True, kw_only=True)
class Draws(MergeStrategy):
    """The models' random numbers, each times its own share."""

    share: PerModel = PerModel(1.0)

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.uniform("x").mT @ block.options.share


def test_a_model_draws_the_same_inside_a_group_and_by_its_own_share() -> None:
    """Numbers are keyed by a model's content, and options by model: a group has those of its members."""
    contents = ("c1", "c2", "c3")
    shares = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    (block,) = blocks_of(
        "w",
        list(torch.zeros(3, 4).double()),
        None,
        groups=("a", "b", "a"),
        fingerprints=contents,
        options=Options(by=Options(share=shares)),
    )
    stage = Group(by=Draws())
    found = stage.apply(block, []).tensors
    numbers = block.uniform("x")
    torch.testing.assert_close(found[0], numbers[0] + 100 * numbers[2])
    torch.testing.assert_close(found[1], 10 * numbers[1])


def test_a_warning_inside_a_group_names_the_group() -> None:
    """The first group's directions cancel out, the second's do not."""
    models = [torch.tensor(v).double() for v in ([1.0, 0.0], [-2.0, 0.0], [1.0, 0.0], [1.0, 1.0])]
    inside = Options(by=Options())
    labels = ("odd", "odd", "fine", "fine")
    (block,) = blocks_of("w", models, None, groups=labels, options=inside)
    stage = Group(by=chain("karcher")[0])
    known = stage.conclude(block, [stage.measure(block, [])])
    assert known["warning"].startswith("group 'odd'")
    assert "fine" not in known["warning"]
    (plain,) = blocks_of("w", models[2:], None, groups=labels[2:], options=inside)
    assert not stage.conclude(plain, [stage.measure(plain, [])])["warning"]


@pytest.mark.parametrize(
    ("groups", "links", "message"),
    [
        (("a", ""), [Group(by=chain("linear")[0])], "the model 'two' has no group"),
        (("a", "b"), [Group(by=chain("slerp")[0])], "the group 'a' has 1 model,"),
    ],
)
def test_wrong_groups_are_refused_before_work(
    groups: Sequence[str], links: list[Stage], message: str, berts: Sequence[Path], tmp_path: Path
) -> None:
    inputs = [
        MergeInput(name, folder, PerTensor(1.0), group)
        for name, folder, group in zip(("one", "two"), berts, groups, strict=False)
    ]
    strategy = [*links, *chain("linear")]
    plan = plan_merge(MergeRequest(inputs=tuple(inputs), strategy=tuple(strategy)))
    assert [p for p in plan.problems if message in str(p)]
    with pytest.raises(CheckpointError, match=message):
        merge_models(inputs, strategy=strategy, out=tmp_path / "out")
