"""Plan of one merge in emberge's terms: models with weights and options, a base, a strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emberge import Problem

from emberge_mergekit.config import MergedSources, Scope, Source
from emberge_mergekit.equivalents import Equivalent, Link, find_equivalent
from emberge_mergekit.library import list_parameters
from emberge_mergekit.settings import UNUSED_PARAMETER, Setting, Settings, flatten, read_scopes


@dataclass(frozen=True)
class PlannedModel:
    """Model of the recipe with its weight (empty where the method has none) and its options by link."""

    source: Source
    weight: Setting = ()
    options: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedMerge:
    """Merge in emberge's options; `notes` become comments of the recipe."""

    models: Sequence[PlannedModel]
    base: Source | None
    links: tuple[Link, ...]
    notes: tuple[str, ...]
    layers: int | None


def plan_sources(merged: MergedSources, method: Any) -> tuple[PlannedMerge | None, list[Problem]]:
    """Return (translated merge, no problems) or (None, problems)."""
    problems: list[Problem] = []
    sources = merged.sources
    is_listed = merged.base is None or merged.base in [s.model for s in sources]
    if merged.base is not None and not is_listed and merged.layers is None:
        # mergekit adds the base of a merge of whole models where it is not listed.
        sources = (*sources, Source(merged.base, Scope({}, merged.place), merged.place))
    name, declared = method.spec.name, list_parameters(method)
    try:
        method.validate_inputs([source.model for source in sources], merged.base)
    except ValueError as error:
        lacks_base = merged.base is None and method.spec.contract.base == "required"
        text = "it needs a base; name it as base_model" if lacks_base else str(error)
        problems.append(Problem(f"merge method '{name}': {text}", merged.place.where))
    scopes = merged.scopes
    scope_settings, scope_problems = read_scopes(scopes, declared, name, of_models=False)
    source_scopes = [source.scope for source in sources]
    source_settings, source_problems = read_scopes(source_scopes, declared, name, of_models=True)
    problems += [*scope_problems, *source_problems]
    has_base = method.spec.contract.base != "ignored"
    base = next((s for s in sources if has_base and s.model == merged.base), None)
    planner = _Planner(name, declared, merged, sources, base, scope_settings, source_settings)
    problems = problems or list(planner.find_missing())
    return (None if problems else planner.plan()), problems


@dataclass(frozen=True)
class _Planner:
    """Planner of a merge with the settings of each source, and of the scopes around the merge."""

    method: str
    declared: Mapping[str, Any]
    merged: MergedSources
    sources: Sequence[Source]
    base: Source | None
    scope_settings: Sequence[Settings]
    source_settings: Sequence[Settings]

    @property
    def _models(self) -> list[tuple[Source, tuple[Settings, ...]]]:
        """The models without the base, each with all settings that it reads."""
        pairs = zip(self.sources, self.source_settings, strict=True)
        return [
            (source, (own, *self.scope_settings))
            for source, own in pairs
            if source is not self.base
        ]

    def find_missing(self) -> Iterator[Problem]:
        """Yield a problem for each required parameter without a value."""
        for name, parameter in self.declared.items():
            if not parameter.required:
                continue
            if parameter.scope == "shared":
                if not flatten(name, self.scope_settings):
                    message = f"merge method '{self.method}' needs '{name}' under 'parameters'"
                    yield Problem(message, self.merged.place.where)
                continue
            for source, scopes in self._models:
                if not flatten(name, scopes):
                    message = f"'{source.model}' has no {name}; give it one under 'parameters'"
                    yield Problem(message, source.place.where)

    def plan(self) -> PlannedMerge:
        """Return the plan."""
        shared = dict(self._collect(self.scope_settings, shared=True))
        with_weights = [dict(self._collect(scopes, shared=False)) for _, scopes in self._models]
        weights = [settings.get("weight", ()) for settings in with_weights]
        of_models: list[Settings] = [
            {name: setting for name, setting in settings.items() if name != "weight"}
            for settings in with_weights
        ]
        if self.method == "passthrough":  # it has one model, whose parameters are the merge's
            shared, of_models = {**shared, **of_models[0]}, [{}]
        links, options, notes = self._choose_links(shared, of_models)
        sources = [source for source, _ in self._models]
        models = [PlannedModel(*each) for each in zip(sources, weights, options, strict=True)]
        base = self.base
        if base is not None and links[0].name == "slerp":
            # mergekit interpolates from its base; emberge interpolates from the first of two models.
            models, base = [PlannedModel(base), *models], None
        notes = (*notes, *self._list_notes(of_models))
        return PlannedMerge(models, base, links, notes, self.merged.layers)

    def _choose_links(
        self, shared: Settings, of_models: Sequence[Settings]
    ) -> tuple[tuple[Link, ...], Sequence[Mapping[str, Settings]], tuple[str, ...]]:
        """Return (links of emberge or of mergekit, options of each model by link, notes)."""
        match = find_equivalent(self.method, shared, has_base=self.base is not None)
        if match is not None and all(map(match.takes, of_models)):
            return (*_split_options_by_owner(match, of_models), match.notes)
        options = [{"mergekit": settings} if settings else {} for settings in of_models]
        notes = ("merged by mergekit's own code, a whole tensor at a time",)
        return (_link_of_mergekit(self.method, shared),), options, notes

    def _collect(
        self, scopes: Sequence[Settings], *, shared: bool
    ) -> Iterator[tuple[str, Setting]]:
        """Yield the settings of the parameters of the whole merge if `shared`, else of a model's."""
        for name, parameter in self.declared.items():
            default = None if parameter.required else parameter.default
            if self.method == "passthrough" and name == "scale":
                default = 1.0
            setting = flatten(name, scopes, default)
            if (parameter.scope == "shared") == shared and setting and name != UNUSED_PARAMETER:
                yield name, setting

    def _list_notes(self, of_models: Sequence[Settings]) -> Iterator[str]:
        if any(
            UNUSED_PARAMETER in scope for scope in (*self.scope_settings, *self.source_settings)
        ):
            yield "int8_mask saves mergekit memory and changes no result; it is left out"
        if self.method == "task_arithmetic" and any("density" in one for one in of_models):
            yield "task_arithmetic drops nothing, so density means nothing to it; it is left out"
        if self.base is not None and self.base.scope.parameters:
            names = ", ".join(self.base.scope.parameters)
            yield f"what is set for the base ({names}) means nothing and is left out"


def _link_of_mergekit(method: str, shared: Settings) -> Link:
    """Return the link that runs mergekit's own code, for settings that no strategy of emberge has."""
    parameters = {name: _convert_truth_values(setting) for name, setting in shared.items()}
    return Link("mergekit", {"method": method, **({"parameters": parameters} if shared else {})})


def _convert_truth_values(setting: Setting) -> Any:
    """Return a setting with truth values that differ by tensor as 1.0 and 0.0."""
    if len(setting) == 1 and setting[0].covers_all and isinstance(setting[0].value, bool | str):
        return setting[0].value
    return tuple(
        replace(entry, value=float(entry.value)) if isinstance(entry.value, bool) else entry
        for entry in setting
    )


def _split_options_by_owner(
    match: Equivalent, of_models: Sequence[Settings]
) -> tuple[tuple[Link, ...], list[dict[str, dict[str, Setting]]]]:
    """Return (links, options of each model): an option goes to its link if all models have the same value."""
    plain = [
        {n: [(e.value, e.filter) for e in s] for n, s in settings.items()} for settings in of_models
    ]
    if of_models and all(one == plain[0] for one in plain):
        first, *others = match.links
        options = {
            match.link_options[name][1]: setting
            for name, setting in of_models[0].items()
            if name in match.link_options
        }
        return (first.with_options(**options), *others), [{} for _ in of_models]
    return match.links, [_group_by_link(match, settings) for settings in of_models]


def _group_by_link(match: Equivalent, settings: Settings) -> dict[str, dict[str, Setting]]:
    options: dict[str, dict[str, Setting]] = {}
    for name, setting in settings.items():
        if name in match.link_options:
            link, option = match.link_options[name]
            options.setdefault(link, {})[option] = setting
    return options
