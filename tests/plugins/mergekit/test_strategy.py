"""mergekit's own methods as a strategy: the same numbers, whatever the blocks, workers and draws before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import PerModel, RecipeError, parse_recipe
from emberge.cli.main import main
from emberge_mergekit.library import find_method, list_methods, list_parameters, merge_one
from emberge_mergekit.strategy import Mergekit
from emberge_mergekit.translate import translate
from torch import Tensor

from tests.plugins.mergekit.peer import llama, plugins, quietly, state_of
from tests.support.merge_in_memory import merge_state_dicts

WEIGHTS = [0.5, 0.3, 0.2]


def tensors(count: int, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """A base and models near it."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(24, 16, generator=generator)
    tuned = base + 0.2 * torch.randn(24, 16, generator=generator)
    return base, [tuned + 0.05 * torch.randn(24, 16, generator=generator) for _ in range(count)]


def merged(
    strategy: Mergekit, models: list[Tensor], base: Tensor | None, **settings: Any
) -> Tensor:
    weights = WEIGHTS[: len(models)] if strategy.weight_role == "scale" else None
    states = [{"w": model} for model in models]
    return merge_state_dicts(
        states, [strategy], {"w": base} if base is not None else None, weights, **settings
    )["w"]


@pytest.mark.parametrize("method", list_methods())
def test_every_method_is_mergekits(method: str) -> None:
    declared = list_parameters(find_method(method))
    needed = {name: 0.3 for name, p in declared.items() if p.required and name == "t"}
    strategy = Mergekit(method=method, parameters={n: PerModel(v) for n, v in needed.items()})
    count = min(3, strategy.arity.stop - 1)
    base, models = tensors(count)
    if strategy.base_policy == "forbidden":
        base = None  # type: ignore[assignment]
    with quietly():
        from mergekit.merge_methods.api import merge_tensors

        inputs = [*([] if base is None else [base]), *models]
        given: dict[str, Any] = dict(needed)
        if "weight" in declared:
            given["weight"] = WEIGHTS[:count]
        found = merge_tensors(
            inputs, method, parameters=given, base_index=None if base is None else 0
        )
    torch.testing.assert_close(merged(strategy, models, base), found, rtol=0, atol=0)
    in_small_blocks = merged(strategy, models, base, block=16)  # elements: a row of the tensor
    assert torch.equal(in_small_blocks, found)


def test_models_may_have_parameters_of_their_own() -> None:
    base, models = tensors(2)
    strategy = Mergekit(method="ties", parameters={"density": PerModel(0.5)})
    states = [{"w": model} for model in models]
    own = [{}, {"mergekit": {"density": PerModel(0.2)}}]
    found = merge_state_dicts(states, [strategy], {"w": base}, [0.5, 0.5], options=own)["w"]
    expected = merge_one(
        "ties", models, base, {"weight": [0.5, 0.5], "density": [0.5, 0.2]}, name="w", seed=0
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_draws_are_those_of_the_seed_and_nothing_else() -> None:
    base, models = tensors(2)
    strategy = Mergekit(method="dare_linear", parameters={"density": PerModel(0.4)})
    first = merged(strategy, models, base)
    state = torch.random.get_rng_state()
    torch.rand(5)
    again = merged(strategy, models, base)
    assert torch.equal(first, again)
    torch.random.set_rng_state(state)
    merged(strategy, models, base)
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing of it is left behind
    assert not torch.equal(first, merged(strategy, models, base, seed=1))


WRONG = {
    "{method: tise}": "mergekit has no method 'tise'; did you mean 'ties'?",
    "{method: ties, parameters: {densty: 1}}": "'ties' has no parameter 'densty'; did you mean 'density'?",
    "{method: ties, parameters: {weight: 1}}": "'weight' belongs to each model",
    "{method: ties, parameters: {normalize: half}}": "'normalize' cannot be 'half': Input should be a valid",
    "{method: slerp}": "'slerp' needs 't'",
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_option_is_said_at_its_line(options: str) -> None:
    text = f"steps:\n  m:\n    merge:\n      models: [me/a, me/b]\n      strategy: {{mergekit: {options}}}\n"
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, plugins(), path=Path("r.yaml"))
    assert str(caught.value).startswith("r.yaml:5: merge strategy 'mergekit': ")
    assert WRONG[options] in str(caught.value)


def test_a_refusal_of_mergekit_names_the_tensor() -> None:
    strategy = Mergekit(
        method="della", parameters={"density": PerModel(0.1), "epsilon": PerModel(0.3)}
    )
    base, models = tensors(2)
    with pytest.raises(Exception, match="w: mergekit's della says: Epsilon must be chosen"):
        merged(strategy, models, base)


OF_ITS_OWN = '''\
"""A method that is registered with mergekit."""

import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mergekit.merge_methods.base import TensorGroup
    from mergekit.merge_methods.easy_define import merge_method
    from mergekit.merge_methods.registry import register


@merge_method(name="furthest")
def furthest(group: TensorGroup, push: float = 1.0) -> torch.Tensor:
    stacked = torch.stack([one.tensor for one in group.entries])
    return push * stacked.amax(dim=0)


register(furthest)
'''


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[Path]:
    """A plugin file that registers a method with mergekit; the method is forgotten afterwards."""
    path = tmp_path / "mine.py"
    path.write_text(OF_ITS_OWN)
    yield path
    with quietly():
        from mergekit.merge_methods import registry

    registry._METHODS.pop("furthest")


def test_a_method_that_someone_registers_with_mergekit_is_a_method_of_configs(
    registered: Path, tmp_path: Path
) -> None:
    for seed, name in enumerate("ab"):
        llama(tmp_path / name, seed=seed, num_hidden_layers=1)
    config = tmp_path / "config.yml"
    text = "models: [{model: ./a}, {model: ./b}]\nmerge_method: furthest\nparameters: {push: 0.5}\n"
    config.write_text(text)
    merge = ["merge", str(config), "--plugin", str(registered), "--quiet"]
    assert main([*merge, "--out", str(tmp_path / "merged")]) == 0
    a, b, made = (state_of(tmp_path / name) for name in ("a", "b", "merged"))
    assert all(torch.equal(made[n], 0.5 * torch.maximum(a[n], b[n])) for n in made)
    said = r"config.yml:3: merge method 'furthest' has no parameter 'psuh'; did you mean 'push'\?"
    with pytest.raises(RecipeError, match=said):
        translate(text.replace("push", "psuh"), config)
