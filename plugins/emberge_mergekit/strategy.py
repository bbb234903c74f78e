"""mergekit's own methods as a strategy: whole tensors, one at a time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emberge import (
    BasePolicy,
    Block,
    MergeStrategy,
    PerModel,
    PerTensor,
    Stats,
    WeightRole,
    stable_seed,
    suggest,
)

from emberge_mergekit.methods import METHODS, Method, MethodName, Parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Mergekit(MergeStrategy):
    """Merge by one of mergekit's own methods, as mergekit computes it (`mergekit.merge_methods`).

    Example options: `{mergekit: {method: nuslerp, parameters: {nuslerp_flatten: false}}}`. Whole tensors are
    merged, one at a time. The models' weights become the method's `weight`. A model may set other parameters
    for itself under `options: {mergekit: {density: 0.7}}`. Random methods are seeded by the recipe's seed,
    the tensor's name and the models' content.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            strategy: {mergekit: {method: linear}}
    """

    method: MethodName | str
    """The `merge_method` of mergekit's configs, one of these or of a later release."""
    parameters: dict[str, PerModel | bool | str] = field(default_factory=dict)
    """The method's parameters, with numbers as elsewhere in a recipe; others have mergekit's defaults."""

    whole = True

    def __post_init__(self) -> None:
        declared = self._method.parameters
        for name, value in self.parameters.items():
            if name == "weight" and "weight" in declared:
                raise ValueError("parameters: 'weight' stands beside each model, `{model, weight}`")
            if name not in declared:
                hint = suggest(name, declared) or f"; it has {', '.join(declared) or 'none'}"
                raise ValueError(f"parameters: '{self.method}' has no parameter '{name}'{hint}")
            _require_kind(name, declared[name], value)
        missing_names = {n for n, p in declared.items() if p.required} - {
            "weight",
            *self.parameters,
        }
        if missing_names:
            raise ValueError(f"parameters: '{self.method}' needs '{min(missing_names)}'")

    @property
    def _method(self) -> Method:
        method = method_named(self.method)
        if method is None:
            hint = suggest(self.method, METHODS) or f"; it has {', '.join(METHODS)}"
            raise ValueError(f"mergekit has no method '{self.method}'{hint}")
        return method

    @property
    def arity(self) -> range:
        method = self._method
        base_count = 1 if method.base == "required" else 0
        least = max(1, method.models[0], method.least - base_count)
        most = [
            m for m in (method.models[1], method.most and method.most - base_count) if m is not None
        ]
        return range(least, min(most, default=999_999) + 1)

    @property
    def base_policy(self) -> BasePolicy:
        return "forbidden" if self._method.base == "ignored" else self._method.base

    @property
    def weight_role(self) -> WeightRole:
        return "scale" if "weight" in self._method.parameters else "unused"

    def schedules(self) -> dict[str, PerTensor | PerModel]:
        declared = self._method.parameters
        return {
            name: PerTensor(list(value.entries)) if declared[name].scope == "shared" else value
            for name, value in self._collect_numbers().items()
        }

    def merge(self, block: Block, stats: Stats) -> Tensor:
        from emberge_mergekit.library import merge_one

        has_base = self._method.base != "ignored"
        plain_values = {n: v for n, v in self.parameters.items() if not isinstance(v, PerModel)}
        parameters = {
            **plain_values,
            **{name: self._read_number(name, block) for name in self._collect_numbers()},
        }
        if "weight" in self._method.parameters:
            parameters["weight"] = self._list_for_inputs("weight", block.weights.tolist(), block)
        merged = merge_one(
            self.method,
            list(block.tensors),
            block.base if has_base else None,
            parameters,
            name=block.name,
            seed=stable_seed(block.seed, block.name, *(block.fingerprints or block.models)),
        )
        return merged.to(block.tensors.dtype)

    def _collect_numbers(self) -> dict[str, PerModel]:
        """Return the numeric parameters by name, with defaults for those that each model may set."""
        numbers = {n: v for n, v in self.parameters.items() if isinstance(v, PerModel)}
        defaults = {
            name: PerModel(float(p.default))
            for name, p in self._method.parameters.items()
            if p.scope != "shared" and isinstance(p.default, int | float) and name != "weight"
        }
        return {**defaults, **numbers}

    def _read_number(self, name: str, block: Block) -> Any:
        value, declared = getattr(block.options, name), self._method.parameters[name]
        if declared.scope != "shared":
            return self._list_for_inputs(name, value.tolist(), block)
        return int(value) if declared.kind == "int" else value

    def _list_for_inputs(self, name: str, values: list[float], block: Block) -> list[float]:
        """Return one value for each input; if the base needs a value, it gets the first model's."""
        takes_base_value = self._method.parameters[name].scope == "input"
        return [values[0], *values] if takes_base_value and self._passes_base(block) else values

    def _passes_base(self, block: Block) -> bool:
        return block.base is not None and self._method.base != "ignored"


def _require_kind(name: str, declared: Parameter, value: PerModel | bool | str) -> None:
    fits = {
        "float": isinstance(value, PerModel),
        "int": isinstance(value, PerModel),
        "bool": isinstance(value, PerModel | bool),
        "str": isinstance(value, str),
    }
    if not fits[declared.kind]:
        words = {
            "float": "a number",
            "int": "a whole number",
            "bool": "true or false",
            "str": "text",
        }
        raise ValueError(f"parameters: '{name}' takes {words[declared.kind]}, not {value!r}")


def method_named(name: str) -> Method | None:
    """Return the method of this name, from the table or, failing that, from mergekit's registry."""
    return METHODS.get(name) or _read_registered(name)


@functools.cache
def _read_registered(name: str) -> Method | None:
    from emberge_mergekit.library import registered_method

    try:
        return registered_method(name)
    except KeyError:
        return None
