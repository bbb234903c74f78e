"""mergekit's own methods as a strategy: whole tensors, one at a time."""

from __future__ import annotations

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
    make_seed,
    suggest,
)

from emberge_mergekit.library import (
    describe_parameter_problem,
    find_method,
    list_methods,
    list_parameters,
    merge_one,
)

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
        models: [./a, ./b]
        strategy: {mergekit: {method: linear}}
    """

    method: str
    """The `merge_method` of mergekit's configs, such as "linear" or one that a plugin registers."""
    parameters: dict[str, PerModel | bool | str] = field(default_factory=dict)
    """The method's parameters, with numbers as elsewhere in a recipe; others have mergekit's defaults."""

    def __post_init__(self) -> None:
        declared = list_parameters(self._method)
        for name, value in self.parameters.items():
            if name == "weight" and "weight" in declared:
                raise ValueError("parameters: 'weight' belongs to each model: `{model, weight}`")
            if name not in declared:
                hint = suggest(name, declared) or f"; it has {', '.join(declared) or 'none'}"
                raise ValueError(f"parameters: '{self.method}' has no parameter '{name}'{hint}")
            text = describe_parameter_problem(
                declared[name], 1.0 if isinstance(value, PerModel) else value
            )
            if text is not None:
                raise ValueError(f"parameters: {text}")
        given_names = {"weight", *self.parameters}
        missing_names = {n for n, p in declared.items() if p.required} - given_names
        if missing_names:
            raise ValueError(f"parameters: '{self.method}' needs '{min(missing_names)}'")

    @property
    def _method(self) -> Any:
        method = find_method(self.method)
        if method is None:
            names = list_methods()
            hint = suggest(self.method, names) or f"; it has {', '.join(names)}"
            raise ValueError(f"mergekit has no method '{self.method}'{hint}")
        return method

    @property
    def arity(self) -> range:
        limits = self._method.spec.contract
        base_count = 1 if self.base_policy == "required" else 0
        least = max(1, limits.min_non_base or 0, limits.min_inputs - base_count)
        most = [limits.max_non_base, limits.max_inputs and limits.max_inputs - base_count]
        return range(least, min((m for m in most if m is not None), default=999_999) + 1)

    @property
    def base_policy(self) -> BasePolicy:
        policy: Any = self._method.spec.contract.base.value
        return "forbidden" if policy == "ignored" else policy

    @property
    def weight_role(self) -> WeightRole:
        return "scale" if "weight" in list_parameters(self._method) else "unused"

    def needs_whole(self, block: Block) -> bool:
        return True

    def schedules(self) -> dict[str, PerTensor]:
        declared = list_parameters(self._method)
        return {
            name: PerTensor(list(value.entries)) if declared[name].scope == "shared" else value
            for name, value in self._collect_numbers().items()
        }

    def merge(self, block: Block, stats: Stats) -> Tensor:
        method = self._method
        base = None if method.spec.contract.base == "ignored" else block.base
        values: dict[str, Any] = {
            n: v for n, v in self.parameters.items() if not isinstance(v, PerModel)
        }
        values |= {name: getattr(block.options, name) for name in self._collect_numbers()}
        if "weight" in list_parameters(method):
            values["weight"] = block.weights
        for name, declared in list_parameters(method).items():
            if name in values and declared.scope != "shared":
                of_models = values[name].tolist()
                # If the base needs a value like every input, it gets the first model's.
                of_base = of_models[:1] if declared.scope == "input" and base is not None else []
                values[name] = [*of_base, *of_models]
        merged = merge_one(
            self.method,
            list(block.tensors),
            base,
            values,
            name=block.name,
            seed=make_seed(block.seed, block.name, *(block.fingerprints or block.models)),
        )
        return merged.to(block.tensors.dtype)

    def _collect_numbers(self) -> dict[str, PerModel]:
        """Return the numeric parameters by name, with defaults for those that each model may set."""
        numbers = {n: v for n, v in self.parameters.items() if isinstance(v, PerModel)}
        defaults = {
            name: PerModel(float(parameter.default))
            for name, parameter in list_parameters(self._method).items()
            if parameter.scope != "shared"
            and isinstance(parameter.default, int | float)
            and name != "weight"
        }
        return {**defaults, **numbers}
