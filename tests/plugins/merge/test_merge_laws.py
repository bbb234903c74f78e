"""Every strategy keeps the laws of merging; what is declared to differ is switched off by name."""

from __future__ import annotations

import pytest
import torch
from emberge import CheckpointError, load_plugins
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
