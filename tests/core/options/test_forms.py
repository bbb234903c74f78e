"""What a field's type means in a recipe, and what is said of a type that means nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pytest
from emberge import (
    Backbone,
    FileRef,
    Loss,
    MergeStrategy,
    NumberRange,
    PerDataset,
    PerModel,
    PluginError,
    Plugins,
    Sampler,
    Stage,
    Step,
    TokenLoss,
    hookimpl,
    parse_recipe,
)
from emberge.options import forms
from emberge.options.forms import find_first_option, read_form, read_options

if TYPE_CHECKING:
    from decimal import Decimal

NUMBER, AT_LEAST_1 = forms.Value(float), NumberRange(least=1)


@dataclass(frozen=True)
class Point:
    """A place."""

    x: float
    y: float = 0.0


@pytest.mark.parametrize(
    ("annotation", "form"),
    [
        (float, NUMBER),
        (Annotated[float, AT_LEAST_1], forms.Value(float, AT_LEAST_1)),
        (Optional[float], forms.Maybe(NUMBER)),  # noqa: UP045
        (Union[float, str], forms.Either((NUMBER, forms.Value(str)))),  # noqa: UP007
        (Literal["a", 1], forms.Choice(("a", 1))),
        (Any, forms.Anything()),
        (Path, forms.PathForm()),
        (FileRef, forms.Ref(FileRef)),
        (PerModel, forms.Schedule(PerModel)),
        (Point, forms.Record(Point)),
        (tuple[float, ...], forms.Many(NUMBER)),
        (tuple[float, str], forms.Fixed((NUMBER, forms.Value(str)))),
        (Mapping[str, float], forms.Table(NUMBER)),
        (PerDataset[float], forms.ByData(NUMBER)),
        (Backbone, forms.OneComponent((Backbone,))),
        (MergeStrategy, forms.OneComponent((MergeStrategy,))),
        (Loss | TokenLoss | None, forms.Maybe(forms.OneComponent((Loss, TokenLoss)))),
        (tuple[Stage, ...], forms.SeveralComponents((Stage,))),
        (tuple[Sampler, ...], forms.SeveralComponents((Sampler,))),
        (
            PerDataset[tuple[Loss | TokenLoss, ...]],
            forms.ByData(forms.SeveralComponents((Loss, TokenLoss))),
        ),
    ],
)
def test_a_type_is_a_form(annotation: Any, form: forms.Form) -> None:
    assert read_form(annotation) == form
    assert form.words


@dataclass(frozen=True, kw_only=True)
class Hidden(Sampler):
    """Names a type that is only there for type checkers."""

    share: Decimal | None = None


@dataclass(frozen=True, kw_only=True)
class Odd(Sampler):
    """Names a type that no recipe can say."""

    rule: Callable[[int], Odd] | Plugins = field(default=print)  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class Bare(Sampler):
    """Has a field without a type, which is none to a dataclass."""

    cut = 0.2


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (Bare, "Bare: 'cut' has no type, so it is no option; write cut: float = 0.2"),
        (
            Hidden,
            "Hidden: the type of option 'share' names 'Decimal', which is not there when the plugin runs; "
            "import it outside `if TYPE_CHECKING`",
        ),
        (Odd, "Odd: the type of option 'rule' cannot be used: a recipe cannot express a "),
    ],
)
def test_a_type_that_cannot_be_used_names_class_and_option(owner: type, said: str) -> None:
    plugins = Plugins()
    hook = hookimpl(lambda: {"odd": owner})
    plugins.register(type("odd", (), {"register_samplers": staticmethod(hook)}), "odd")

    @dataclass(frozen=True, kw_only=True)
    class Use(Step):
        """Use a sampler."""

        sampler: Sampler

    hook = hookimpl(lambda: {"use": Use})
    plugins.register(type("use", (), {"register_steps": staticmethod(hook)}), "use")
    with pytest.raises(PluginError) as caught:
        parse_recipe("steps: {a: {use: {sampler: odd}}}", plugins)
    assert said in str(caught.value)
    assert owner.__module__ in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Base(Loss):
    """A loss with one option."""

    margin: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    """Adds none."""

    _cache: int = 0
    made: int = field(default=0, init=False)


def test_options_are_public_fields_and_the_first_is_the_nearest_classs_own() -> None:
    first = find_first_option(Derived)
    assert first is not None
    assert (first.name, first.owner) == ("margin", Base)
    assert find_first_option(Sampler) is None
    assert list(read_options(Derived)) == ["margin", "weight", "cross_rank", "layers"]


def test_own_options_come_in_order_with_defaults_made_by_factories() -> None:
    """A dataclass leaves a field that is declared anew at its old place, before all new ones."""

    @dataclass(frozen=True, kw_only=True)
    class Local(Base):
        """Has another default for an option of all losses."""

        scale: float = 20.0
        cross_rank: bool = False

    assert list(read_options(Local)) == ["scale", "cross_rank", "margin", "weight", "layers"]
    first = find_first_option(Local)
    assert first is not None
    assert first.name == "scale"

    @dataclass(frozen=True, kw_only=True)
    class Made(Sampler):
        """Makes a list."""

        names: tuple[str, ...] = field(default_factory=lambda: ("a",))
        needed: int

    options = read_options(Made)
    assert options["names"].default == ("a",)
    assert options["needed"].required
