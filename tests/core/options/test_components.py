"""How a name and its options become a component, and a list of them a chain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from emberge import (
    DataRef,
    Loss,
    PerDataset,
    PerModel,
    PerTensor,
    Plugins,
    RecipeError,
    Step,
    hookimpl,
    parse_recipe,
)

from tests.support import acme
from tests.support.reading import blend, faults, fit, step


@pytest.mark.parametrize(
    "written",
    ["{bag: {ratio: 0.5}}", "{bag: 0.5}", "{acme:bag: 0.5}", "{'acme:bag': {ratio: 0.5, draw: 0}}"],
)
def test_a_component_is_a_name_with_options_or_its_first_own_options_value(written: str) -> None:
    built = step(fit(f"sampler: [{written}, shuffle]"))
    assert built.sampler == (acme.Bag(ratio=0.5), acme.Shuffle())


def test_components_have_defaults() -> None:
    built = step(fit())
    assert built.sampler == (acme.Shuffle(),)
    assert built.backbone == acme.Plain()
    assert built.loss == PerDataset(default=(acme.Contrast(),))


def test_a_value_alone_is_the_first_option_of_the_components_own() -> None:
    assert step(fit("loss: {contrast: 0.1}")).loss.default == (acme.Contrast(temperature=0.1),)
    assert faults(fit("loss: {rank: 3}")) == ["6: loss 'rank' has no option for the number 3"]


def test_several_components_may_be_a_mapping_or_a_list() -> None:
    text = (
        "steps: {a: {rate: {models: m, evaluators: {board: {tasks_: [x]}, acme:board: {data: d}}}}}"
    )
    one, two = step(text).evaluators
    assert one == acme.Board(tasks_=("x",))
    assert two == acme.Board(data=(DataRef("d"),))
    built = step(fit("loss: [{contrast: {weight: 2}}, mask]"))
    assert built.loss.default == (acme.Contrast(weight=2.0), acme.Mask())


def test_only_the_last_sampler_makes_batches() -> None:
    assert faults(fit("sampler: [bag, bag]")) == [
        "6: sampler 'bag' only selects; end the chain with a sampler that makes batches"
    ]
    assert faults(fit("sampler: [shuffle, shuffle]")) == [
        "6: sampler 'shuffle' makes batches and can only stand last"
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sampler: bga", "there is no sampler 'bga'; did you mean 'bag'?"),
        ("sampler: 3", "takes one component, `name` or `name: {options}`, not the number 3"),
        ("sampler: {bag: 1, shuffle: 2}", "`name: {options}`, not 'bag' and 'shuffle'"),
    ],
)
def test_a_value_that_names_no_component_is_refused(line: str, said: str) -> None:
    (fault,) = faults(fit(line))
    assert fault.startswith("6: ")
    assert said in fault


def test_a_list_is_a_chain_whose_links_may_be_chains_and_have_strategies() -> None:
    built = step(blend("strategy: [{cut: {density: 0.3}}, vote]"))
    assert built.strategy == (acme.Cut(density=PerModel(0.3)), acme.Vote())
    assert step(blend("strategy: mean")).strategy == (acme.Mean(),)
    (cut, vote) = step(blend("strategy: {ties: {normalize: false}}")).strategy
    assert cut.density == PerModel(0.2)  # the chain's default, not the link's
    assert cut.density.within == (0, 1)
    assert (vote.normalize, vote.scale.plain()) == (False, 1.0)
    (cut, vote) = step(blend("strategy: {ties: 0.7}")).strategy
    assert cut.density == PerModel(0.7)
    built = step(blend("strategy: [grouped, ties]"))
    assert [type(link).__name__ for link in built.strategy] == ["Grouped", "Cut", "Vote"]
    (grouped, _) = step(
        blend("strategy: [{grouped: {by: {vote: {normalize: false}}}}, mean]")
    ).strategy
    assert grouped.by == acme.Vote(normalize=False)
    (grouped, _) = step(blend("strategy: [{grouped: loud}, mean]")).strategy
    assert grouped.by == acme.Vote(scale=PerTensor(2.0))  # a chain of one link is a strategy


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("strategy: cut", "transform 'cut' cannot end a chain; let a merge strategy follow it"),
        ("strategy: [mean, vote]", "merge strategy 'mean' ends a chain and can only stand last"),
        ("strategy: {ties: {density: 3}}", "'density' of merge strategy 'ties': 3 lies outside 0"),
        ("strategy: [{grouped: ties}, mean]", "'ties' is a chain of 2 links, and option 'by' of"),
        ("strategy: [{cut: {density: [{filtr: x, value: 1}]}}, mean]", "an entry has 'value'"),
    ],
)
def test_an_impossible_chain_is_refused(line: str, said: str) -> None:
    (fault,) = faults(blend(line))
    assert fault.startswith("5: ")
    assert said in fault


@dataclass(frozen=True, kw_only=True)
class Embed(Step):
    """Takes a loss of embeddings only."""

    loss: Loss


def test_a_component_of_another_contract_is_refused() -> None:
    plugins = Plugins()
    hooks = {
        "register_losses": staticmethod(hookimpl(lambda: {"masked": acme.Mask, "base": acme.Rank})),
        "register_steps": staticmethod(hookimpl(lambda: {"embed": Embed})),
    }
    plugins.register(type("hooks", (), hooks), "mine")
    (one,) = parse_recipe("steps: {a: {embed: base}}", plugins).steps
    assert one.step == Embed(loss=acme.Rank())
    with pytest.raises(RecipeError) as caught:
        parse_recipe("steps: {a: {embed: {loss: masked}}}", plugins)
    said = "recipe:1: loss 'masked' is a TokenLoss, and option 'loss' of step 'embed' takes a Loss"
    assert str(caught.value) == said
