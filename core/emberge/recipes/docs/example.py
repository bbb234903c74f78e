"""An example recipe for a component, made of the fields of what is installed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from typing import Any

import yaml

from emberge.contracts.sampler import Sampler
from emberge.contracts.stage import ChainSpec, MergeTransform, Stage
from emberge.contracts.step import Step
from emberge.errors import EmbergeError
from emberge.plugins import Component, Plugins
from emberge.recipes.docs.option_docs import Documented, documented_options
from emberge.recipes.options import field_types as forms
from emberge.recipes.options.field_types import Form, kinds_of
from emberge.recipes.options.fields import first_option, options_of
from emberge.recipes.parse.parse import parse_recipe
from emberge.recipes.recipe import Recipe

__all__ = ["example"]

# Stand-ins for numbers that have no default, until the component takes one.
_NUMBERS = (0.5, 1, 2, 0.1)
_SHOWN = 4


def example(component: Component, plugins: Plugins) -> str:
    """A recipe that uses the component and that the grammar takes; nothing where there can be none.

    What a recipe must give is there with stand-ins, the component's own options with their defaults.
    """
    draft, recipe = next(_taken(component, plugins), (None, None))
    if draft is None or recipe is None:
        return ""
    for step in recipe.steps:
        if _lacks_base(step.step):
            _options_of_step(draft.steps[step.group])["base"] = "./base"
    return _yaml(draft.steps)


def _taken(component: Component, plugins: Plugins) -> Iterator[tuple[_Draft, Recipe]]:
    """The drafts that the grammar takes, as they are and as it reads them."""
    for draft in _drafts(component, plugins):
        try:
            yield draft, parse_recipe(_yaml(draft.steps), plugins)
        except EmbergeError:
            continue


def _yaml(steps: dict[str, Any]) -> str:
    text = yaml.safe_dump({"steps": steps}, sort_keys=False, default_flow_style=None, width=90)
    return str(text)


def _lacks_base(step: Step) -> bool:
    """Whether a merge has a stage that needs a base, and none is given."""
    wanted = any(stage.base_policy == "required" for stage in _stages(step))
    return wanted and getattr(step, "base", "") is None


def _stages(value: Any) -> Iterator[Stage]:
    if isinstance(value, Stage):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _stages(item)
    elif dataclasses.is_dataclass(value):
        for option in dataclasses.fields(value):
            yield from _stages(getattr(value, option.name))


def _options_of_step(step: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (options,) = step.values()
    return options


def _drafts(component: Component, plugins: Plugins) -> Iterator[_Draft]:
    """Drafts from the plainest on: other numbers, then one more of the component's options."""
    options = [] if component.kind == "reader" else documented_options(component, plugins)
    for extra in (None, *(option.name for option in options if not option.required)):
        for number in _NUMBERS:
            draft = _Draft(plugins, number, extra)
            if draft.write(component):
                yield draft


@dataclass
class _Draft:
    """One attempt at a recipe."""

    plugins: Plugins
    number: float
    extra: str | None
    steps: dict[str, Any] = field(default_factory=dict)

    def write(self, component: Component) -> bool:
        """Fill `steps`; False if no installed step takes such a component."""
        if component.kind == "step":
            given = self.given(component, self.extra) or self.own(component)
            self.steps["example"] = {self.name(component): given}
            return True
        for step in self.installed("step"):
            for option in documented_options(step, self.plugins):
                place = _place(option.form)
                if place is not None and _takes(place, component):
                    given = self.given(step, self.asked(step))
                    given[option.name] = self.placed(component, place)
                    self.steps["example"] = {self.name(step): given}
                    return True
        return False

    def asked(self, step: Component) -> str | None:
        """The option that a step needs though it may be left out: one of several that exclude each other."""
        draft, _ = next(_taken(step, self.plugins), (None, None))
        return draft.extra if draft is not None else None

    def installed(self, *kinds: str) -> list[Component]:
        """Components of the kinds in the order in which they were added."""
        return [component for component in self.plugins.components if component.kind in kinds]

    def name(self, component: Component) -> str:
        """The bare name, or the full one where two plugins give it."""
        return _name(component, self.plugins)

    def placed(self, component: Component, place: forms.Part | forms.Parts) -> Any:
        """The component as an option's value, with a last link behind it where it needs one."""
        own = self.component(component, self.own(component))
        if isinstance(place, forms.Part) or not _needs_more(component):
            return own
        last = next((c for c in self.finishing(place) if c is not component), None)
        return [own, self.plainest(last)] if last else own

    def finishing(self, place: forms.Part | forms.Parts) -> list[Component]:
        """Components that may stand alone or last, the simplest first."""
        fitting = [
            component
            for component in self.installed(*kinds_of(place.contracts))
            if _takes(place, component) and not _needs_more(component)
        ]
        return sorted(fitting, key=self.burden)

    def burden(self, component: Component) -> tuple[bool, bool, int]:
        """How plain a component is: what it requires, whether others take it by default, its options."""
        options = documented_options(component, self.plugins)
        required = any(option.required for option in options)
        return required, component.name not in self.defaults, len(options)

    @functools.cached_property
    def defaults(self) -> set[str]:
        """The components that stand where other components' options are left out."""
        types = [c.type for c in self.plugins.components if dataclasses.is_dataclass(c.type)]
        owners = [type_ for type_ in types if isinstance(type_, type)]
        found = (o.component for owner in owners for o in options_of(owner).values())
        return {one if isinstance(one, str) else next(iter(one)) for one in found if one}

    def required(self, component: Component) -> int:
        """How many options a recipe must give."""
        return sum(option.required for option in documented_options(component, self.plugins))

    def component(self, component: Component, given: dict[str, Any]) -> Any:
        """`name` or `name: {options}`."""
        name = self.name(component)
        return {name: given} if given else name

    def plainest(self, component: Component) -> Any:
        """A component that is not the one shown, with what it must be given."""
        return self.component(component, self.given(component, None))

    def own(self, component: Component) -> dict[str, Any]:
        """What must be given, the first of the component's own options, and one more."""
        options = documented_options(component, self.plugins)
        given = {o.name: self.shown(o) for o in options if _is_own(o, component) or o.required}
        given = dict(list(given.items())[: max(_SHOWN, self.required(component))])
        return given | {o.name: self.value(o.form) for o in options if o.name == self.extra}

    def shown(self, option: Documented) -> Any:
        """An option's default, or a stand-in."""
        return self.value(option.form) if option.required else option.default

    def given(self, component: Component, extra: str | None) -> dict[str, Any]:
        """What a component must be given, and one option more."""
        options = documented_options(component, self.plugins)
        return {o.name: self.value(o.form) for o in options if o.required or o.name == extra}

    # ── stand-ins ───────────────────────────────────────────────────────────────────────────────

    def value(self, form: Form) -> Any:
        """A stand-in for a value of the form."""
        match form:
            case forms.Ref(kind):
                return self.reference(kind.accepts)
            case forms.Part() | forms.Parts():
                first = next(iter(self.finishing(form)), None)
                return self.plainest(first) if first else "component"
            case forms.Record(owner):
                return self.record(owner)
            case forms.Many(item):
                return self.several(item)
            case forms.Fixed(items):
                return [self.value(item) for item in items]
            case _:
                return self.plain(form)

    def plain(self, form: Any) -> Any:
        """A stand-in for a value without parts, or for one that wraps another."""
        if isinstance(form, forms.Table):
            return {"name": self.value(form.item)}
        if isinstance(form, forms.ByData | forms.Maybe):
            return self.value(form.item)
        if isinstance(form, forms.Either):
            return self.value(form.forms[0])
        if isinstance(form, forms.Choice):
            return form.values[0]
        if isinstance(form, forms.Schedule) or form == forms.Value(float):
            return self.number
        scalars = {int: max(1, int(self.number)), str: "name", bool: True}
        return scalars.get(form.type, self.number) if isinstance(form, forms.Value) else "./path"

    def reference(self, accepts: tuple[str, ...]) -> str:
        """Something outside the recipe, or an earlier step where only a step will do."""
        if not {"scores", "report"} <= set(accepts):
            return {"model": "./model", "data": "./data.jsonl"}.get(
                accepts[0], "./file.safetensors"
            )
        if "earlier" not in self.steps:
            makers = [c for c in self.installed("step") if c.type.produces == "model"]
            if makers:
                self.steps["earlier"] = {self.name(makers[0]): self.given(makers[0], None)}
        return "$earlier"

    def record(self, owner: type) -> Any:
        """The required fields, or the first one's value where that says all."""
        options = documented_options(owner, self.plugins)
        required = [option for option in options if option.required]
        first = first_option(owner)
        if first is not None and all(option.name == first.name for option in required):
            return self.value(first.form)
        return {option.name: self.value(option.form) for option in required}

    def several(self, item: Form) -> list[Any]:
        """Two models, one of anything else."""
        one = self.value(item)
        return ["./model", "./other-model"] if one == "./model" else [one]


def _name(component: Component, plugins: Plugins) -> str:
    alike = plugins.of(component.kind)[component.name]
    return component.name if len(alike) == 1 else component.full_name


def _place(form: Form) -> forms.Part | forms.Parts | None:
    """Where in an option's form a component may stand."""
    while isinstance(form, forms.Maybe | forms.ByData):
        form = form.item
    return form if isinstance(form, forms.Part | forms.Parts) else None


def _takes(place: forms.Part | forms.Parts, component: Component) -> bool:
    if component.kind not in kinds_of(place.contracts):
        return False
    if isinstance(component.type, ChainSpec):
        return isinstance(place, forms.Parts)
    return issubclass(component.type, place.contracts)


def _needs_more(component: Component) -> bool:
    """Whether another link must follow it in a chain."""
    if isinstance(component.type, ChainSpec):
        return False
    if issubclass(component.type, Sampler):
        return component.type.batches is Sampler.batches
    return issubclass(component.type, MergeTransform)


def _is_own(option: Documented, component: Component) -> bool:
    """Whether an option is worth showing: declared by the component, with a plain default."""
    links = component.type.links if isinstance(component.type, ChainSpec) else (component.type,)
    declared = any(option.name in vars(link).get("__annotations__", {}) for link in links)
    plain = isinstance(option.default, bool | int | float | str)
    return declared and plain and option.default is not MISSING
