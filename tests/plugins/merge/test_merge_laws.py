"""Every strategy keeps the laws of merging; what is declared to differ is switched off by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emberge import Block, CheckpointError, Measures, MergeStrategy, Pass, Stats, load_plugins
from emberge.testing import check_strategy
from torch import Tensor

from tests.support.chains import STRATEGIES, TRANSFORMS
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.registered import CHAINS

State = dict[str, Tensor]


@pytest.mark.parametrize("name", CHAINS)
def test_the_strategies_keep_the_laws(name: str) -> None:
    links, exceptions = CHAINS[name]
    check_strategy(links, **exceptions)


def test_no_strategy_is_left_out() -> None:
    tried = {name.partition(",")[0].partition(" ")[0] for name in CHAINS}
    components = load_plugins(block=()).components
    registered = {one.name for one in components if one.kind == "merge strategy"}
    # What statistics make of fisher is in its own tests, as is mergekit's own; without a file it refuses.
    assert {*STRATEGIES, "layer_softmax"} <= registered
    assert registered - {"fisher", "mergekit"} <= tried
    used = {link.name_in_recipes for links, _ in CHAINS.values() for link in links}
    assert set(TRANSFORMS) <= used


def models_of(name: str, dtype: torch.dtype) -> tuple[State | None, list[State]]:
    """A base, if the chain has one, and as many models as it takes, up to three, in a dtype."""
    links, declared = CHAINS[name]
    generator = torch.Generator().manual_seed(3)
    base = {n: torch.randn(s, generator=generator) for n, s in (("w", (6, 5)), ("b", (5,)))}
    count = min(max(links[0].arity.start, 3), links[0].arity.stop - 1)
    noisy = [
        {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in base.items()}
        for _ in range(count)
    ]
    based = declared.get("base", any(link.base_policy == "required" for link in links))
    stored = [{n: t.to(dtype) for n, t in one.items()} for one in (base, *noisy)]
    return stored[0] if based else None, stored[1:]


def merged(name: str, base: State | None, models: list[State]) -> State:
    return merge_state_dicts(models, CHAINS[name][0], base, groups=["g"] * len(models))


@pytest.mark.parametrize("name", CHAINS)
def test_a_nan_is_refused_with_its_tensor_and_model(name: str) -> None:
    base, models = models_of(name, torch.float32)
    states = [*models, *([base] if base is not None else [])]
    for number, state in enumerate(states):
        state["w"][-1, -1], before = float("nan"), float(state["w"][-1, -1])
        whose = f"model {number + 1}" if number < len(models) else "the base"
        with pytest.raises(CheckpointError, match=f"^w: '{whose}' has values that are NaN"):
            merged(name, base, models)
        state["w"][-1, -1] = before
    merged(name, base, models)


@dataclass(frozen=True, kw_only=True)
class _Off(MergeStrategy):
    """Break one law at a time."""

    law: str = ""

    passes = (Pass(),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        # The greatest of a block is no sum over blocks.
        return {"largest": block.tensors.abs().max(), "blocks": 1}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        merged = block.tensors.mean(0)
        return {
            "identity": lambda: merged.where(merged == 1.0, 1.01 * merged),
            "permutation": lambda: (merged + block.tensors[0]) / 2,
            "scale covariance": lambda: merged.clamp(max=6.0),
            "blocks: the size": lambda: merged + 1e-3 * (merged.flatten()[0] - merged.mean()),
            "blocks: measures": lambda: merged * (1 + stats[0]["blocks"]),
            "finite": lambda: merged * (merged / merged),
            "frozen": lambda: 1.01 * merged,
            "determinism": lambda: merged + torch.rand(()),
            "one-hot": lambda: merged,
        }[self.law]()


LAWS = ("identity", "permutation", "scale covariance", "blocks: the size", "blocks: measures")


@pytest.mark.parametrize("law", [*LAWS, "finite", "frozen", "determinism", "one-hot"])
def test_a_broken_law_is_named(law: str) -> None:
    with pytest.raises(AssertionError, match=f"^{law}"):
        check_strategy(_Off(law=law), one_hot=law == "one-hot")
