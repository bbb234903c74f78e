"""Plan of one merge or slice in emberge's terms: models with weights and options, a base, a strategy."""

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
    """Model of the recipe with its weight (None where the method has none) and its options by link."""

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
    """Translate a merge or slice; return None after reporting what is wrong with it.

    A config that was not `sound` when it was read may lack parts, so their number is not checked.
    """
    count_before = len(faults.problems)
    part = _convert_parameters(part, method, faults)
    inputs = _add_base(part, sliced=sliced)
    base = _find_base(part, inputs, method, faults)
    _require_counts(part, inputs, base, method, faults if sound else Faults(None))
    if len(faults.problems) > count_before or not sound:
        return None
    models = tuple(model for model in inputs if model is not base)
    planned = _Planner(part, method, models, base, sliced).plan(faults)
    return planned if len(faults.problems) == count_before else None


# ── what is merged ──────────────────────────────────────────────────────────────────────────────


def _convert_parameters(part: ConfigPart, method: Method, faults: Faults) -> ConfigPart:
    inputs = tuple(
        replace(model, parameters=require_method(method, model.parameters, faults, beside=True))
        for model in part.inputs
    )
    outer_parameters = tuple(
        require_method(method, p, faults, beside=False) for p in part.parameters
    )
    return replace(part, inputs=inputs, parameters=outer_parameters)


def _add_base(part: ConfigPart, *, sliced: bool) -> tuple[ConfigModel, ...]:
    """Return the inputs, with the base of a merge of whole models added where it is not listed."""
    listed_keys = {model.model.key for model in part.inputs}
    if sliced or part.base is None or part.base.key in listed_keys:
        return part.inputs
    return (*part.inputs, ConfigModel(part.base, Parameters({}, {}), part.base.line))


def _find_base(
    part: ConfigPart, inputs: tuple[ConfigModel, ...], method: Method, faults: Faults
) -> ConfigModel | None:
    if method.base == "ignored":
        return None
    base_inputs = [
        model for model in inputs if part.base is not None and model.model.key == part.base.key
    ]
    if part.base is not None and not base_inputs:
        message = f"the base '{part.base}' must be a source of each slice; add it to 'sources'"
        faults.add(part.line, message)
    if method.base == "required" and part.base is None:
        faults.add(part.line, f"merge method '{method.name}' needs a base; name it by 'base_model'")
    if method.base == "forbidden" and base_inputs:
        faults.add(part.line, f"merge method '{method.name}' takes no base; leave it out")
    return base_inputs[0] if base_inputs else None


def _require_counts(
    part: ConfigPart,
    inputs: tuple[ConfigModel, ...],
    base: ConfigModel | None,
    method: Method,
    faults: Faults,
) -> None:
    seen_keys: set[tuple[str | None, ...]] = set()
    for model in inputs:
        if model.model.key in seen_keys:
            faults.add(model.line, f"'{model.model}' is listed twice; each model is taken once")
        seen_keys.add(model.model.key)
    model_count = len(inputs) - (base is not None)
    bounds = [
        (len(inputs), method.least, method.most, "models, the base included"),
        (model_count, method.models[0], method.models[1], "models beside the base"),
    ]
    for count, least, most, counted_things in bounds:
        is_above = most is not None and count > most
        if count < least or is_above:
            allowed = f"at most {most}" if is_above else f"at least {least}"
            allowed = f"{least}" if least == most else allowed
            message = f"merge method '{method.name}' takes {allowed} {counted_things}, and there are {count}"
            faults.add(part.line, message)
            return


# ── how it is merged ────────────────────────────────────────────────────────────────────────────

_LIMITS = {"density": (0.0, 1.0), "gamma": (0.0, 1.0), "epsilon": (0.0, 0.5)}


@dataclass(frozen=True)
class _Planner:
    """Planner of one part; `models` are in order and exclude the base."""

    part: ConfigPart
    method: Method
    models: tuple[ConfigModel, ...]
    base: ConfigModel | None
    sliced: bool

    def plan(self, faults: Faults) -> PlannedMerge:
        settings = self._collect_shared()
        model_settings = [self._collect_per_model(model) for model in self.models]
        has_base = self.base is not None
        match = equivalent(self.method.name, settings, based=has_base, sliced=self.sliced)
        weights = [self._read_weight(model, faults) for model in self.models]
        if match is None or not _is_within_limits(match, model_settings):
            return self._plan_with_mergekit(settings, model_settings, weights)
        links, options = _place_options(match, model_settings, apart=self.sliced)
        planned = [PlannedModel(*each) for each in zip(self.models, weights, options, strict=True)]
        notes = (*match.notes, *self._list_notes(model_settings))
        base = self.base
        if self.method.name == "slerp" and base is not None:
            # mergekit interpolates from its base; emberge interpolates from the first of two models.
            planned, base = [PlannedModel(base), *planned], None
        return PlannedMerge(tuple(planned), base, links, notes, self.part.line)

    def _plan_with_mergekit(
        self,
        settings: Mapping[str, Setting],
        model_settings: Sequence[Mapping[str, Setting]],
        weights: Sequence[Setting | None],
    ) -> PlannedMerge:
        """Return a plan that runs mergekit's own code, for settings that no strategy of emberge has."""
        options = {"method": LinkOption(self.method.name)}
        if settings:
            plain_settings = {
                name: _convert_truth_values(setting) for name, setting in settings.items()
            }
            options["parameters"] = LinkOption(
                plain_settings, next(iter(settings.values()))[0].line
            )
        models = tuple(
            PlannedModel(model, weight, {"mergekit": dict(own_settings)} if own_settings else {})
            for model, weight, own_settings in zip(
                self.models, weights, model_settings, strict=True
            )
        )
        notes = (
            "merged by mergekit's own code, a whole tensor at a time",
            *self._list_notes(model_settings),
        )
        link = Link("mergekit", options)
        return PlannedMerge(models, self.base, (link,), notes, self.part.line)

    def _collect_shared(self) -> dict[str, Setting]:
        """Return the settings of the whole merge; for passthrough `scale` is one of them."""
        settings: dict[str, Setting] = {}
        for name, parameter in self.method.parameters.items():
            if parameter.scope == "shared":
                setting = _flatten_if_set(name, self.part.parameters, parameter.default)
            elif self.method.name == "passthrough":
                setting = _flatten_if_set(
                    name, (self.models[0].parameters, *self.part.parameters), 1.0
                )
            else:
                continue
            if setting:
                settings[name] = setting
        settings.pop(HARMLESS, None)
        return settings

    def _collect_per_model(self, model: ConfigModel) -> dict[str, Setting]:
        """Return the model's settings of parameters that may differ by model, without the weight."""
        scopes = (model.parameters, *self.part.parameters)
        settings: dict[str, Setting] = {}
        for name, parameter in self.method.parameters.items():
            if parameter.scope == "shared" or name == "weight" or self.method.name == "passthrough":
                continue
            setting = _flatten_if_set(name, scopes, parameter.default)
            if setting:
                settings[name] = setting
        return settings

    def _read_weight(self, model: ConfigModel, faults: Faults) -> Setting | None:
        if "weight" not in self.method.parameters:
            return None
        setting = flatten("weight", (model.parameters, *self.part.parameters), None)
        if not setting:
            is_listed = any(model is source for source in self.part.inputs)
            reason = (
                "" if is_listed else f" ('{self.method.name}' weighs the base like any other model)"
            )
            message = f"'{model.model}' has no weight{reason}; give it one under 'parameters'"
            faults.add(model.line, message)
        return setting

    def _list_notes(self, model_settings: Sequence[Mapping[str, Setting]]) -> Iterator[str]:
        scopes = [*self.part.parameters, *(model.parameters for model in self.models)]
        if any(HARMLESS in scope.settings for scope in scopes):
            yield "int8_mask saves mergekit memory and changes no result; it is left out"
        if self.method.name == "task_arithmetic" and any(
            "density" in settings for settings in model_settings
        ):
            yield "task_arithmetic drops nothing, so density means nothing to it; it is left out"
        base_settings = self.base.parameters.settings if self.base is not None else {}
        if base_settings:
            yield f"what is set for the base ({', '.join(base_settings)}) means nothing and is left out"


def _flatten_if_set(name: str, scopes: Sequence[Parameters], default: Scalar | None) -> Setting:
    """Return a parameter's settings, then its default for all other tensors; empty if it is not set."""
    is_set = any(name in scope.settings for scope in scopes)
    return flatten(name, scopes, default) if is_set else ()


def _is_within_limits(match: Equivalent, model_settings: Sequence[Mapping[str, Setting]]) -> bool:
    """Return whether every parameter of every model is within the limits of emberge's options."""
    for settings in model_settings:
        for name in settings.keys() & match.link_options.keys():
            lowest, highest = _LIMITS[name]
            values = [float(v) for entry in settings[name] for v in _list_values(entry)]
            if not all(lowest <= number <= highest for number in values):
                return False
    return True


def _list_values(entry: Entry) -> tuple[Scalar, ...]:
    return entry.value if isinstance(entry.value, tuple) else (entry.value,)


def _place_options(
    match: Equivalent, model_settings: Sequence[Mapping[str, Setting]], *, apart: bool
) -> tuple[tuple[Link, ...], list[dict[str, dict[str, Setting]]]]:
    """Return (links, options of each model): an option goes to its link if all models have the same value.

    With `apart` a filter may select other layers in each model, so filtered options stay with the models.
    """
    plain = [
        {n: [(e.value, e.filter) for e in s] for n, s in per_model.items()}
        for per_model in model_settings
    ]
    filtered = any(
        entry.filter for per_model in model_settings for s in per_model.values() for entry in s
    )
    if plain and not (apart and filtered) and all(per_model == plain[0] for per_model in plain):
        options = {
            match.link_options[name][1]: LinkOption(setting, setting[0].line)
            for name, setting in model_settings[0].items()
            if name in match.link_options
        }
        first, *other_links = match.links
        first_with_options = replace(first, options={**first.options, **options})
        return (first_with_options, *other_links), [{} for _ in model_settings]
    return match.links, [_group_by_link(match, settings) for settings in model_settings]


def _group_by_link(
    match: Equivalent, settings: Mapping[str, Setting]
) -> dict[str, dict[str, Setting]]:
    options: dict[str, dict[str, Setting]] = {}
    for name, setting in settings.items():
        if name in match.link_options:
            link, option = match.link_options[name]
            options.setdefault(link, {})[option] = setting
    return options


def _convert_truth_values(setting: Setting) -> Any:
    """Return a setting for mergekit's own code, with truth values that differ by tensor as 1.0 and 0.0."""
    if len(setting) == 1 and setting[0].all and isinstance(setting[0].value, bool | str):
        return setting[0].value
    return tuple(
        replace(entry, value=float(entry.value)) if isinstance(entry.value, bool) else entry
        for entry in setting
    )
