"""Merging: blocks go in, measures are summed, one block comes out.

A stage sees aligned float32 rows of one tensor from every model and nothing else: no file, device,
thread or rank. That is what lets the runner stream, chunk, spread and resume any method.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge.contracts.block import Block
from emberge.contracts.reference import FileRef, Reference
from emberge.contracts.schedule import PerModel, PerTensor

if TYPE_CHECKING:
    from torch import Tensor


BasePolicy = Literal["required", "optional", "forbidden"]
WeightRole = Literal["share", "scale", "unused"]
Scope = Literal["tensor", "layer", "model"]

Shape = tuple[int, ...]

# The result of one `measure` call: names to tensors, numbers, or mappings of them.
Measures = Mapping[str, Any]
# stats[p] are the joined measures of pass p of the stage itself.
Stats = Sequence[Measures]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One link of a merge. Fields are its YAML options; properties may depend on them.

    Number options that may vary are typed `PerTensor` or `PerModel`; the runner resolves them into
    `block.options` before each call, a float or one float64 tensor [models].
    """

    @property
    def arity(self) -> range:
        """The numbers of models that it takes."""
        return range(1, 1_000_000)

    @property
    def base_policy(self) -> BasePolicy:
        """The need of a base: required, optional or forbidden."""
        return "optional"

    @property
    def weight_role(self) -> WeightRole:
        """The meaning of a model's weight: a share, a factor, or nothing."""
        return "share"

    @property
    def scope(self) -> Scope:
        """The tensors over which measures are summed."""
        return "tensor"

    @property
    def whole(self) -> bool:
        """True asks for the full tensor in one block (SVD, solve); counted against the memory limit."""
        return False

    @property
    def passes(self) -> int:
        """The number of times that all blocks go to `measure` before merging."""
        return 0

    @property
    def statistics_kind(self) -> str:
        """The kind of its statistics files, as their measure names it; "" takes any."""
        return ""

    @property
    def statistics_of(self) -> Literal["models", "labels"]:
        """The owners of the entries that it reads: the very models, by their content, or labels.

        Labels are names of models or groups, and what was measured may be others' (specialists). Each that
        the stage sees needs an entry for every tensor that it merges, or for the tensor's layer.
        """
        return "labels"

    def whole_for(self, block: Block) -> bool:
        """Return whether the tensor of a block without rows is needed in one block; default: `whole`."""
        return self.whole

    @property
    def expected_readings(self) -> float:
        """Readings of a whole tensor that its passes usually add up to, for forecasts."""
        return self.passes

    def measure(self, block: Block, stats: Stats) -> Measures:
        """Return the sums of pass number len(stats) over one block, which `join` adds up."""
        raise NotImplementedError(f"{type(self).__name__} has passes but no measure")

    def join(self, measures: Sequence[Measures]) -> Measures:
        """Unite measures by key and add values, in the order given; associative, as it is called in parts."""
        return _join_measures(measures)

    def needs_rows(self, start: int, size: int, stats: Stats) -> bool:
        """Return whether pass len(stats) has to see the `size` elements from `start`; others are not read."""
        return True

    def reads_rows(self, number: int) -> bool:
        """Return whether pass `number` looks at rows; else it measures each tensor once, without any."""
        return True

    def reads_base(self, number: int) -> bool:
        """Return whether pass `number`, from 0, or with `passes` the merge, looks at the base's rows.

        They are read if any link says so, and else the block has no base. Default: a stage that takes one.
        """
        return self.base_policy != "forbidden"

    def conclude(self, block: Block, stats: Stats) -> Measures:
        """Return what later passes and the merge get in place of stats[-1]; called after each pass.

        `block` has no rows, but name, models, weights and options. Here sums become coefficients, once
        for a tensor rather than once for each of its blocks. Two keys mean something to the runner: a text
        under "warning" is reported, and so are numbers by label under "findings", such as each model's
        weight in this tensor, as their means over the elements of each layer.
        """
        return stats[-1]

    def schedules(self) -> dict[str, PerTensor | PerModel]:
        """Return the options that vary over tensors or models."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, PerTensor | PerModel)}

    def files(self) -> list[FileRef]:
        """Return the statistics files that its options name; a block's `statistics` have their entries."""
        inner = [file for stage in self.nested().values() for file in stage.files()]
        return [*self.own_files(), *inner]

    def own_files(self) -> list[FileRef]:
        """Return the statistics files of its own options, without those of nested stages."""
        values = [getattr(self, f.name) for f in dataclasses.fields(self)]
        listed = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
        return [v for v in listed if isinstance(v, FileRef)]

    def problems(self, models: Sequence[str], groups: Sequence[str]) -> Iterable[str]:
        """Yield for `check` what is wrong with merging models of these names and group labels."""
        return ()

    def entry_problem(self, name: str, shape: Shape, known: Mapping[str, Shape | None]) -> str:
        """Return what prevents merging a tensor by its models' statistics, in a few words; "" for nothing.

        `known` is the shape of each model's entry, None where it has none; asked before any work.
        """
        return ""

    def weight_warnings(self, weights: Mapping[str, float]) -> Iterable[str]:
        """Yield what is doubtful about the models' weights, each given by its least over all tensors."""
        return ()

    @property
    def name_in_recipes(self) -> str:
        """The stage's name in words: `SignConsensus` is sign_consensus."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def plain(self) -> Mapping[str, Any] | str:
        """Return the stage as a recipe writes it, without options that have their defaults."""
        options: dict[str, Any] = {}
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if value != _find_default(option):
                options[option.name] = _convert_value(value)
        return {self.name_in_recipes: options} if options else self.name_in_recipes

    def nested(self) -> dict[str, Stage]:
        """Return the fields that are stages themselves, by name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, Stage)}


class MergeTransform(Stage):
    """N models to M models."""

    def remaining(self, models: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
        """Return the models that the next link sees; names other than given are groups of their own name."""
        return models

    def apply(self, block: Block, stats: Stats) -> Block:
        """Return the block that the next link sees."""
        raise NotImplementedError


class MergeStrategy(Stage):
    """N models to one: the last link of a chain."""

    @property
    def base_share(self) -> float:
        """The share of the base in the result, which leaves the models so much less than their weights."""
        return 0.0

    def merge(self, block: Block, stats: Stats) -> Tensor:
        """Return the merged rows, shaped like one model's rows."""
        raise NotImplementedError

    def factors(self, block: Block, stats: Stats) -> Sequence[float] | None:
        """Return each model's factor where `merge` is the sum of the models by them; None elsewhere.

        With them, what a later link does to the sums can be done in one step.
        """
        return None


@dataclass(frozen=True)
class ChainSpec:
    """A registered name for a chain: its links, and the defaults that differ from the links' own."""

    links: tuple[type[Stage], ...]
    defaults: Mapping[str, Any]
    doc: str

    def link_of(self, option: str) -> list[type[Stage]]:
        """Return the links that have this option; a chain's options are the union of its links'."""
        return [link for link in self.links if option in link.__dataclass_fields__]


def chain(*links: type[Stage], doc: str, **defaults: Any) -> ChainSpec:
    """Name a chain of stages, `chain(First, Second, doc="…", option=0.5)`.

    Raises:
        TypeError: when a link but the last is a strategy, or a default fits no link.
    """
    *transforms, last = links
    for link in transforms:
        if not issubclass(link, MergeTransform):
            raise TypeError(f"{link.__name__} ends a chain and can only stand last")
    if not issubclass(last, MergeStrategy):
        raise TypeError(f"a chain ends with a strategy, and {last.__name__} is a transform")
    spec = ChainSpec(tuple(links), defaults, doc)
    for name in defaults:
        if not spec.link_of(name):
            raise TypeError(f"no link of the chain has the option '{name}'")
    return spec


def _find_default(option: dataclasses.Field[Any]) -> Any:
    """Return an option's default; `MISSING` when it has none."""
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default


def _convert_value(value: Any) -> Any:
    if isinstance(value, Stage | PerTensor):
        return value.plain()
    if isinstance(value, tuple | list):
        return [_convert_value(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _convert_value(one) for key, one in value.items()}
    return value.text if isinstance(value, Reference) else value


def _join_measures(measures: Sequence[Measures]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for block_measures in measures:
        for key, value in block_measures.items():
            if key not in joined:
                joined[key] = value
            elif isinstance(value, Mapping):
                joined[key] = _join_measures([joined[key], value])
            else:
                joined[key] = joined[key] + value
    return joined
