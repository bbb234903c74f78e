"""The table and the pages of components, from their fields and docstrings, and the examples in them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pytest
from emberge import (
    Launcher,
    MergeStrategy,
    PluginError,
    hookimpl,
    load_plugins,
    parse_recipe,
)
from emberge.cli.arguments import parse as parse_words
from emberge.options import describe_component, list_components, read_component
from emberge.options.component_pages import build_component_pages, list_component_rows

from tests.support.reading import plugins


def row(name: str) -> dict[str, object]:
    (found,) = [one for one in list_component_rows(plugins()) if one["full_name"] == f"acme:{name}"]
    return found


def test_a_row_says_where_a_component_comes_from_and_what_it_takes() -> None:
    assert row("contrast") == {
        "kind": "loss",
        "name": "contrast",
        "full_name": "acme:contrast",
        "plugin": "acme",
        "distribution": "acme-tools",
        "version": "1.0",
        "summary": "Pull pairs together.",
        "clash": "",
        "options": [
            {
                "name": "temperature",
                "type": "a number above 0",
                "required": False,
                "doc": "What similarities are divided by.",
                "default": 0.05,
            },
            {
                "name": "negatives",
                "type": "one of auto, in_batch",
                "required": False,
                "doc": "",
                "default": "auto",
            },
            *row("rank")["options"],  # type: ignore[misc]
        ],
    }


def test_options_come_with_defaults_as_a_recipe_would_write_them() -> None:
    options = {one["name"]: one["default"] for one in row("ties")["options"]}  # type: ignore[attr-defined]
    assert options == {"density": 0.2, "scale": 1.0, "normalize": True}
    models = row("blend")["options"][0]  # type: ignore[index]
    assert (models["name"], models["required"]) == ("models", True)
    assert [one["name"] for one in models["options"]] == [
        "model",
        "weight",
        "group",
        "name",
        "options",
    ]
    options = {one["name"]: one.get("default") for one in row("fit")["options"]}  # type: ignore[attr-defined]
    assert options["sampler"] == "shuffle"
    assert options["betas"] == [0.9, 0.999]
    assert options["max_steps"] is None
    assert row("shuffle")["options"][0]["default"] == 32  # type: ignore[index]


def test_a_page_says_what_a_component_does_and_takes_or_suggests_another() -> None:
    text = describe_component(plugins(), "cut")
    assert text.startswith(
        "cut: a merge transform of acme (acme-tools 1.0)\n\nKeep the largest part"
    )
    shown = " ".join(text.split())
    assert (
        "density: a number from 0 to 1 that may vary over depth, tensors or models = 0.5 The"
        in shown
    )
    assert "\n      The share kept." in text
    assert describe_component(plugins(), "board").startswith("board: an evaluator of acme")
    with pytest.raises(PluginError, match="'largest'; `emberge list largest` finds cut"):
        describe_component(plugins(), "largest")
    with pytest.raises(PluginError, match=r"there is no component 'tyes'; did you mean 'ties'\?"):
        describe_component(plugins(), "tyes")
    with pytest.raises(PluginError, match="`emberge list` names all that are installed"):
        describe_component(plugins(), "qqqq")


@dataclass(frozen=True, kw_only=True)
class Shown(MergeStrategy):
    """Take the first model.

    It has an example.

    Example:
        one:
          blend: {models: [./a, ./b], strategy: shown}
    """


def test_the_example_of_a_docstring_is_shown_as_a_recipe_that_parses() -> None:
    found = plugins()
    module = type(
        "shown", (), {"register_merge_strategies": staticmethod(hookimpl(lambda: {"shown": Shown}))}
    )
    found.register(module, "shown")
    (page,) = build_component_pages(found, "shown")
    assert page["doc"] == "Take the first model.\n\nIt has an example."
    (step,) = parse_recipe(page["example"], found).steps
    assert step.step.strategy == (Shown(),)  # type: ignore[attr-defined]
    assert describe_component(found, "shown").count("strategy: shown") == 1


def test_an_example_of_some_options_is_shown_in_a_whole_step() -> None:
    ties, slerp, cosent = (
        build_component_pages(INSTALLED, name)[0]["example"] for name in ("ties", "slerp", "cosent")
    )
    assert (
        "    merge:\n      models: [./a, ./b]\n      base: ./base\n      strategy: {ties:" in ties
    )
    assert "base" not in slerp, "of models that it states the base is stated too"
    assert "      data: ./scored.jsonl\n      loss: {cosent: {scale: 20}}\n      sampler:" in cosent
    (page,) = build_component_pages(load_plugins(block=("merge",)), "layer_softmax")
    assert page["example"] == "strategy: {layer_softmax: {temperature: 1.0}}", "without the step"


@dataclass(frozen=True)
class Curve:
    """Curve. `steepness` is its greatest slope."""

    steepness: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Curved(Shown):
    """Take the first model."""

    curve: Curve = Curve(steepness=2.0)


def test_a_page_imports_no_other_component() -> None:
    found, added = plugins(), {"curved": Curved, "gone": "no_such_module:Gone"}
    module = type(
        "curved", (), {"register_merge_strategies": staticmethod(hookimpl(lambda: added))}
    )
    found.register(module, "curved")
    assert '{"steepness": 2.0}' in describe_component(found, "curved")


INSTALLED = load_plugins(block=())
# Readers are chosen by a file's ending.
WITHOUT_EXAMPLE = {c.name for c in INSTALLED.components if c.kind == "reader"}


@pytest.mark.parametrize(("name", "kind"), [(c.full_name, c.kind) for c in INSTALLED.components])
def test_every_installed_component_has_an_example_that_is_taken(name: str, kind: str) -> None:
    (page,) = (one for one in build_component_pages(INSTALLED, name) if one["kind"] == kind)
    if page["name"] in WITHOUT_EXAMPLE:
        assert not page["example"]
    elif page["kind"] == "launcher":
        lines = page["example"].splitlines()
        given = [parse_words(shlex.split(line)[1:], {}).launcher for line in lines]
        assert all(read_component(text, Launcher, INSTALLED, "--launcher") for text in given)
    else:
        recipe = parse_recipe(page["example"], INSTALLED)
        used = [c.plugin for step in recipe.steps for c in INSTALLED.map_revisions(step.step)]
        assert page["plugin"] in used
        assert page["name"] in page["example"]


def lines_of(*words: str, **options: object) -> list[str]:
    return list_components(plugins(), words, **options).splitlines()  # type: ignore[arg-type]


def test_each_component_is_one_line_under_its_kind_with_its_plugin_unless_it_is_ours() -> None:
    assert list_components(load_plugins(block=["*"])) == ""
    lines = lines_of()
    rows = list_component_rows(plugins())
    entries = [line for line in lines if line.startswith("  ")]
    assert [line.split()[0] for line in entries] == [row["name"] for row in rows]
    assert all(row["summary"] in line for row, line in zip(rows, entries, strict=True))
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings.index("Steps") < headings.index("Losses") < headings.index("Merge strategies")
    assert all(line.endswith("(acme)") for line in entries)
    assert "(merge)" not in list_components(load_plugins(block=()))


def test_only_components_that_have_all_words_are_listed() -> None:
    def names(*words: str) -> list[str]:
        return [line.split()[0] for line in lines_of(*words) if line.startswith(" ")]

    assert names("TIES") == ["ties"]
    assert "ties" in names("vote"), "a word of its documentation"
    assert set(names("loss")) >= {"contrast", "rank"}
    assert names("pull", "together") == ["contrast"]
