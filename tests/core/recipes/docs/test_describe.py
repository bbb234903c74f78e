"""What components are said to be: the list, the pages, their examples, and the shipped recipes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

import pytest
from emberge import (
    Launcher,
    MergeStrategy,
    PluginError,
    Plugins,
    Reader,
    Sampler,
    Step,
    hookimpl,
    load_plugins,
    parse_recipe,
)
from emberge.cli.arguments import parse as parse_words
from emberge.recipes import describe_component, read_component, shipped_recipes
from emberge.recipes.docs.describe import build_component_pages, list_component_rows
from emberge.recipes.docs.option_docs import find_option_doc
from emberge.recipes.run.workspace import list_plugins_behind

from tests.support import acme
from tests.support.reading import plugins


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place."""

    height: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TwoPlaces(Step):
    """Go from one place to another."""

    first: Place = field(default_factory=Place)
    second: tuple[Place, ...] = ()


def row(name: str) -> dict[str, object]:
    (found,) = [one for one in list_component_rows(plugins()) if one["full_name"] == f"acme:{name}"]
    return found


# ── rows ────────────────────────────────────────────────────────────────────────────────────


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
                "type": "a number",
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


def test_a_chain_has_the_options_of_its_links_with_its_own_defaults() -> None:
    options = {one["name"]: one["default"] for one in row("ties")["options"]}  # type: ignore[attr-defined]
    assert options == {"density": 0.2, "scale": 1.0, "normalize": True}


def test_a_nested_mapping_shows_its_own_options() -> None:
    models = row("blend")["options"][0]  # type: ignore[index]
    assert (models["name"], models["required"]) == ("models", True)
    assert [one["name"] for one in models["options"]] == [
        "model",
        "weight",
        "group",
        "name",
        "options",
    ]


def test_defaults_are_said_as_a_recipe_would() -> None:
    options = {one["name"]: one.get("default") for one in row("fit")["options"]}  # type: ignore[attr-defined]
    assert options["sampler"] == "shuffle"
    assert options["betas"] == [0.9, 0.999]
    assert options["max_steps"] is None
    assert row("shuffle")["options"][0]["default"] == 32  # type: ignore[index]


def test_a_name_that_two_plugins_give_has_a_page_for_each() -> None:
    both = plugins()
    twin = type("twin", (), {"register_samplers": staticmethod(acme.register_samplers)})
    both.register(twin, "twin")
    assert len(build_component_pages(both, "bag")) == 2
    assert len(build_component_pages(both, "twin:bag")) == 1


# ── a page ──────────────────────────────────────────────────────────────────────────────────────


def test_a_page_says_what_a_component_does_and_takes() -> None:
    text = describe_component(plugins(), "cut")
    assert text.startswith(
        "cut: a merge transform of acme (acme-tools 1.0)\n\nKeep the largest part"
    )
    assert "  density: a number that may vary over depth, tensors or models = 0.5\n" in text
    assert "\n      The share kept." in text
    assert describe_component(plugins(), "board").startswith("board: an evaluator of acme")


def test_a_component_that_is_not_there_is_suggested() -> None:
    with pytest.raises(PluginError, match=r"there is no component 'tyes'; did you mean 'ties'\?"):
        describe_component(plugins(), "tyes")
    with pytest.raises(PluginError, match="`emberge list` names all that are installed"):
        describe_component(plugins(), "qqqq")


def test_a_reader_says_which_files_it_reads() -> None:
    class Lines(Reader):
        """Read lines."""

        suffixes = (".txt", ".text")

    module = type(
        "lines", (), {"register_readers": staticmethod(hookimpl(lambda: {"lines": Lines}))}
    )
    found = Plugins()
    found.register(module, "lines")
    text = describe_component(found, "lines")
    assert "Reads files that end with .txt, .text." in text
    assert "Example" not in text


@pytest.mark.parametrize("name", ["DataEntry", "data-entry", "dataentry"])
def test_options_that_many_components_take_have_a_page_of_their_own(name: str) -> None:
    page = describe_component(plugins(), name)
    assert page.startswith("DataEntry: a mapping of options, taken by 1 component")
    assert "One entry of `data`" in page
    assert "\n  hub: text or nothing" in page
    assert page.endswith("Taken by\n  fit: `data`")


def test_a_page_refers_to_options_that_many_components_take() -> None:
    page = describe_component(plugins(), "fit")
    assert "`emberge show DataEntry` lists the options inside." in page
    assert "hub: text" not in page


def test_the_same_options_are_listed_once_on_a_page() -> None:
    module = type("two", (), {"register_steps": staticmethod(hookimpl(lambda: {"two": TwoPlaces}))})
    found = plugins()
    found.register(module, "two")
    page = describe_component(found, "two")
    assert page.count("height: a number") == 1
    assert "second: " in page
    assert "The options inside are those of `first`." in page
    assert "Taken by\n  two: `first`, `second`" in describe_component(found, "place")


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


INSTALLED = load_plugins(block=())
# Readers are chosen by a file's ending.
WITHOUT_EXAMPLE = {c.name for c in INSTALLED.components if c.kind == "reader"}


@pytest.mark.parametrize(("name", "kind"), [(c.full_name, c.kind) for c in INSTALLED.components])
def test_every_installed_component_has_an_example_that_is_taken(name: str, kind: str) -> None:
    (page,) = (one for one in build_component_pages(INSTALLED, name) if one["kind"] == kind)
    if page["name"] in WITHOUT_EXAMPLE:
        assert not page["example"]
    elif kind == "reporter":  # no recipe names it
        assert page["example"].startswith("emberge ")
    elif page["kind"] == "launcher":
        lines = page["example"].splitlines()
        given = [parse_words(shlex.split(line)[1:], {}).launcher for line in lines]
        assert all(read_component(text, Launcher, INSTALLED, "--launcher") for text in given)
    else:
        recipe = parse_recipe(page["example"], INSTALLED)
        used = [used for step in recipe.steps for used in list_plugins_behind(step, INSTALLED)]
        assert page["plugin"] in used
        assert page["name"] in page["example"]


# ── documentation of options ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Parent(Sampler):
    """Do nothing. `size` is how much; `shape` how it looks.

    In the end, `colour` may be red. `size` is named twice.
    """

    size: int = 1
    shape: str = "round"
    colour: str = "red"
    weight: float = 1.0
    """Right below,
    over two lines."""
    silent: int = 0


@dataclass(frozen=True, kw_only=True)
class Child(Parent):
    """Do more. `shape` is square here."""


def test_an_option_is_documented_below_its_field_or_in_the_docstring() -> None:
    assert find_option_doc(Parent, "weight") == "Right below, over two lines."
    assert find_option_doc(Parent, "size") == "`size` is how much."
    assert find_option_doc(Parent, "shape") == "`shape` how it looks."
    assert find_option_doc(Parent, "colour") == "In the end, `colour` may be red."
    assert find_option_doc(Parent, "silent") == ""


def test_an_inherited_option_keeps_its_documentation() -> None:
    assert find_option_doc(Child, "shape") == "`shape` is square here."
    assert find_option_doc(Child, "weight") == "Right below, over two lines."


try:
    raise ImportError
except ImportError:

    class WithoutLibrary:
        """Defined where an import failed."""

        level: int = 0
        """In a handler."""

        class Inner:
            """Defined in a class."""

            level: int = 0
            """In a class."""


def test_a_class_is_found_wherever_it_is_defined() -> None:
    class Local:
        level: int = 0
        """In a function."""

    assert find_option_doc(WithoutLibrary, "level") == "In a handler."
    assert find_option_doc(WithoutLibrary.Inner, "level") == "In a class."
    assert find_option_doc(Local, "level") == "In a function."


# ── shipped recipes ─────────────────────────────────────────────────────────────────────────────


def test_shipped_recipes_have_a_name_a_place_and_an_opening() -> None:
    recipes = shipped_recipes()
    demo = recipes["boom/demo"]
    assert demo.path.name == "demo.yaml"
    assert demo.path.is_file()
    assert demo.description.startswith("BOOM in minutes")
    for recipe in recipes.values():
        assert "Command" in recipe.description, f"{recipe.name} does not say how it is run"
