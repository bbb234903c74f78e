"""Options of a merge's stages, resolved to numbers for one tensor and each of its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emberge.contracts import Block, Options, PerModel, PerTensor, Stage
from emberge.errors import suggest

# Stage name to option name to one model's own value.
ModelOptions = Mapping[str, Mapping[str, PerTensor]]


def _key(name: str) -> str:
    return name.replace("_", "").lower()


@dataclass(frozen=True)
class Resolver:
    """Resolves a stage's schedules for a block: depth by the tensor's layer, a model's own options first."""

    models: Mapping[str, ModelOptions]
    depths: Mapping[str, float]
    called: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By canonical name, the names for filters: each model's own of a tensor, and under "" the result's."""

    def __call__(self, stage: Stage, block: Block) -> Options:
        """Return the numbers: a float each, or a float64 tensor [models] for options of models."""
        values: dict[str, Any] = {}
        depth = self.depths.get(block.name, 0.0)
        called = self.called.get(block.name, {})
        here = called.get("", block.name)
        for name, schedule in stage.schedules().items():
            number = schedule.at(here, depth)
            if isinstance(schedule, PerModel):
                own = {model: self._own(stage, name, model) for model in block.models}
                numbers = [
                    o.at(called.get(model, here), depth, number) if o else number
                    for model, o in own.items()
                ]
                values[name] = block.weights.new_tensor(numbers)
            else:
                values[name] = number
        for name, inner in stage.nested().items():
            values[name] = self(inner, block)
        return Options(values)

    def _own(self, stage: Stage, option: str, model: str) -> PerTensor | None:
        for name, options in self.models.get(model, {}).items():
            if _key(name) == _key(stage.name_in_recipes) and option in options:
                return options[option]
        return None


def faults_of(model: str, options: ModelOptions, stages: Sequence[Stage]) -> Iterator[str]:
    """Yield what is wrong with one model's own options, given all stages of the merge."""
    known = {stage.name_in_recipes: stage for stage in stages}
    by_key = {_key(name): stage for name, stage in known.items()}
    for name, chosen in options.items():
        stage = by_key.get(_key(name))
        if stage is None:
            yield f"'{model}' has options for '{name}', which is no link here{suggest(name, known)}"
            continue
        own = [n for n, s in stage.schedules().items() if isinstance(s, PerModel)]
        for option, value in chosen.items():
            if option not in own:
                hint = suggest(option, own) or f"; per model: {', '.join(own) or 'nothing'}"
                yield f"'{name}' has no option '{option}' that a model may set itself{hint}"
                continue
            yield from _out_of_bounds(f"'{model}': {name}.{option}", value, stage, option)


def _out_of_bounds(place: str, value: PerTensor, stage: Stage, option: str) -> Iterator[str]:
    try:
        PerModel(list(value.entries), within=stage.schedules()[option].within)
    except ValueError as error:
        yield f"{place}: {error}"


def all_stages(chain: Sequence[Stage]) -> Iterator[Stage]:
    """Yield the links of a chain and the stages nested in them."""
    for link in chain:
        yield link
        yield from all_stages(list(link.nested().values()))
