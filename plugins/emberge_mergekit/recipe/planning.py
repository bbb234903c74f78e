"""One merge, or one slice of it, as ours: models with their weights and options, a base, a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emberge_mergekit.config.reading import Faults
from emberge_mergekit.config.schema import ConfigModel, ConfigPart
from emberge_mergekit.methods import Method
from emberge_mergekit.recipe.equivalents import Equivalent, Link, LinkOption, equivalent
from emberge_mergekit.recipe.parameters import (
    HARMLESS,
    Entry,
    Parameters,
    Scalar,
    Setting,
    flatten,
    require_method,
)


@dataclass(frozen=True)
class PlannedModel:
    """Model of the recipe: its weight, None where the method has none, and its own options by link."""

    input: ConfigModel
    weight: Setting | None = None
    options: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedMerge:
    """Merge or slice in emberge's options; `notes` become comments of the recipe."""

    models: tuple[PlannedModel, ...]
    base: ConfigModel | None
    links: tuple[Link, ...]
    notes: tuple[str, ...]
    line: int


def plan_part(
    part: ConfigPart, method: Method, faults: Faults, *, sliced: bool, sound: bool = True
) -> PlannedMerge | None:
    """Translate a merge or slice; None when something is wrong with it, which is noted.

    Of a config that was not `sound` when it was read, parts may be lacking, and their lack is no fault.
    """
    known = len(faults.problems)
    part = _typed(part, method, faults)
    inputs = _with_base(part, sliced=sliced)
    base = _base_of(part, inputs, method, faults)
    _require_counts(part, inputs, base, method, faults if sound else Faults(None))
    if len(faults.problems) > known or not sound:
        return None
    models = tuple(one for one in inputs if one is not base)
    planned = _Planner(part, method, models, base, sliced).plan(faults)
    return planned if len(faults.problems) == known else None


# ── what is merged ──────────────────────────────────────────────────────────────────────────────


def _typed(part: ConfigPart, method: Method, faults: Faults) -> ConfigPart:
    inputs = tuple(
        replace(one, parameters=require_method(method, one.parameters, faults, beside=True))
        for one in part.inputs
    )
    wider = tuple(require_method(method, p, faults, beside=False) for p in part.parameters)
    return replace(part, inputs=inputs, parameters=wider)


def _with_base(part: ConfigPart, *, sliced: bool) -> tuple[ConfigModel, ...]:
    """Return all inputs; of whole models the base is one even where it is not listed."""
    listed = {one.model.key for one in part.inputs}
    if sliced or part.base is None or part.base.key in listed:
        return part.inputs
    return (*part.inputs, ConfigModel(part.base, Parameters({}, {}), part.base.line))


def _base_of(
    part: ConfigPart, inputs: tuple[ConfigModel, ...], method: Method, faults: Faults
) -> ConfigModel | None:
    if method.base == "ignored":
        return None
    found = [one for one in inputs if part.base is not None and one.model.key == part.base.key]
    if part.base is not None and not found:
        message = f"the base '{part.base}' must be a source of each slice; add it to 'sources'"
        faults.add(part.line, message)
    if method.base == "required" and part.base is None:
        faults.add(part.line, f"merge method '{method.name}' needs a base; name it by 'base_model'")
    if method.base == "forbidden" and found:
        faults.add(part.line, f"merge method '{method.name}' takes no base; leave it out")
    return found[0] if found else None


def _require_counts(
    part: ConfigPart,
    inputs: tuple[ConfigModel, ...],
    base: ConfigModel | None,
    method: Method,
    faults: Faults,
) -> None:
    seen: set[tuple[str | None, ...]] = set()
    for one in inputs:
        if one.model.key in seen:
            faults.add(one.line, f"'{one.model}' is listed twice; each model is taken once")
        seen.add(one.model.key)
    beside = len(inputs) - (base is not None)
    bounds = [
        (len(inputs), method.least, method.most, "models, the base included"),
        (beside, method.models[0], method.models[1], "models beside the base"),
    ]
    for count, least, most, what in bounds:
        over = most is not None and count > most
        if count < least or over:
            wanted = f"at most {most}" if over else f"at least {least}"
            wanted = f"{least}" if least == most else wanted
            message = f"merge method '{method.name}' takes {wanted} {what}, and there are {count}"
            faults.add(part.line, message)
            return


# ── how it is merged ────────────────────────────────────────────────────────────────────────────

_LIMITS = {"density": (0.0, 1.0), "gamma": (0.0, 1.0), "epsilon": (0.0, 0.5)}


@dataclass(frozen=True)
class _Planner:
    """The models of one part, in order and without the base where that is one of its own."""

    part: ConfigPart
    method: Method
    models: tuple[ConfigModel, ...]
    base: ConfigModel | None
    sliced: bool

    def plan(self, faults: Faults) -> PlannedMerge:
        settings = self._shared()
        own = [self._own(one) for one in self.models]
        based = self.base is not None
        found = equivalent(self.method.name, settings, based=based, sliced=self.sliced)
        weights = [self._weight(one, faults) for one in self.models]
        if found is None or not _fits(found, own):
            return self._by_mergekit(settings, own, weights)
        links, options = _placed(found, own, apart=self.sliced)
        planned = [PlannedModel(*each) for each in zip(self.models, weights, options, strict=True)]
        notes = (*found.notes, *self._notes(own))
        base = self.base
        if self.method.name == "slerp" and base is not None:
            # mergekit's base is where the way begins; ours is the first of two models.
            planned, base = [PlannedModel(base), *planned], None
        return PlannedMerge(tuple(planned), base, links, notes, self.part.line)

    def _by_mergekit(
        self,
        settings: Mapping[str, Setting],
        own: Sequence[Mapping[str, Setting]],
        weights: Sequence[Setting | None],
    ) -> PlannedMerge:
        """Plan the merge by mergekit's own code, which takes every value that its configs can have."""
        options = {"method": LinkOption(self.method.name)}
        if settings:
            numbers = {name: _numbers(setting) for name, setting in settings.items()}
            options["parameters"] = LinkOption(numbers, next(iter(settings.values()))[0].line)
        models = tuple(
            PlannedModel(one, weight, {"mergekit": dict(given)} if given else {})
            for one, weight, given in zip(self.models, weights, own, strict=True)
        )
        notes = ("merged by mergekit's own code, a whole tensor at a time", *self._notes(own))
        link = Link("mergekit", options)
        return PlannedMerge(models, self.base, (link,), notes, self.part.line)

    def _shared(self) -> dict[str, Setting]:
        """Return the settings of the whole merge; passthrough has one model, so its `scale` is one."""
        found: dict[str, Setting] = {}
        for name, declared in self.method.parameters.items():
            if declared.scope == "shared":
                setting = _flattened(name, self.part.parameters, declared.default)
            elif self.method.name == "passthrough":
                setting = _flattened(name, (self.models[0].parameters, *self.part.parameters), 1.0)
            else:
                continue
            if setting:
                found[name] = setting
        found.pop(HARMLESS, None)
        return found

    def _own(self, one: ConfigModel) -> dict[str, Setting]:
        """Return the settings that may differ by model, beside the weight."""
        scopes = (one.parameters, *self.part.parameters)
        found: dict[str, Setting] = {}
        for name, declared in self.method.parameters.items():
            if declared.scope == "shared" or name == "weight" or self.method.name == "passthrough":
                continue
            setting = _flattened(name, scopes, declared.default)
            if setting:
                found[name] = setting
        return found

    def _weight(self, one: ConfigModel, faults: Faults) -> Setting | None:
        if "weight" not in self.method.parameters:
            return None
        setting = flatten("weight", (one.parameters, *self.part.parameters), None)
        if not setting:
            listed = any(one is other for other in self.part.inputs)
            why = "" if listed else f" ('{self.method.name}' weighs the base like any other model)"
            message = f"'{one.model}' has no weight{why}; give it one under 'parameters'"
            faults.add(one.line, message)
        return setting

    def _notes(self, own: Sequence[Mapping[str, Setting]]) -> Iterator[str]:
        scopes = [*self.part.parameters, *(one.parameters for one in self.models)]
        if any(HARMLESS in scope.settings for scope in scopes):
            yield "int8_mask saves mergekit memory and changes no result; it is left out"
        if self.method.name == "task_arithmetic" and any("density" in given for given in own):
            yield "task_arithmetic drops nothing, so density means nothing to it; it is left out"
        unused = self.base.parameters.settings if self.base is not None else {}
        if unused:
            yield f"what is set for the base ({', '.join(unused)}) means nothing and is left out"


def _flattened(name: str, scopes: Sequence[Parameters], default: Scalar | None) -> Setting:
    """Return all settings of a parameter, with its default where some tensors are left; nothing if unset."""
    is_set = any(name in scope.settings for scope in scopes)
    return flatten(name, scopes, default) if is_set else ()


def _fits(found: Equivalent, own: Sequence[Mapping[str, Setting]]) -> bool:
    """Return whether our options take the models' own numbers."""
    for settings in own:
        for name in settings.keys() & found.owned.keys():
            low, high = _LIMITS[name]
            numbers = [float(v) for entry in settings[name] for v in _values(entry)]
            if not all(low <= number <= high for number in numbers):
                return False
    return True


def _values(entry: Entry) -> tuple[Scalar, ...]:
    return entry.value if isinstance(entry.value, tuple) else (entry.value,)


def _placed(
    found: Equivalent, own: Sequence[Mapping[str, Setting]], *, apart: bool
) -> tuple[tuple[Link, ...], list[dict[str, dict[str, Setting]]]]:
    """Return (links, options of each model): in the links where all models set the same, else in the models.

    With `apart` a filter may mean other layers of each model, and then stays beside it.
    """
    alike = [{n: [(e.value, e.filter) for e in s] for n, s in one.items()} for one in own]
    filtered = any(entry.filter for one in own for s in one.values() for entry in s)
    if alike and not (apart and filtered) and all(one == alike[0] for one in alike):
        options = {
            found.owned[name][1]: LinkOption(setting, setting[0].line)
            for name, setting in own[0].items()
            if name in found.owned
        }
        first, *rest = found.links
        lifted = replace(first, options={**first.options, **options})
        return (lifted, *rest), [{} for _ in own]
    return found.links, [_by_link(found, settings) for settings in own]


def _by_link(found: Equivalent, own: Mapping[str, Setting]) -> dict[str, dict[str, Setting]]:
    options: dict[str, dict[str, Setting]] = {}
    for name, setting in own.items():
        if name in found.owned:
            link, option = found.owned[name]
            options.setdefault(link, {})[option] = setting
    return options


def _numbers(setting: Setting) -> Any:
    """Return a setting for mergekit's own code: truth values that differ by tensor are 1 and 0."""
    if len(setting) == 1 and setting[0].all and isinstance(setting[0].value, bool | str):
        return setting[0].value
    return tuple(
        replace(entry, value=float(entry.value)) if isinstance(entry.value, bool) else entry
        for entry in setting
    )
