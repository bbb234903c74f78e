"""Stages of a merge: they measure blocks, and transform or merge them.

A stage sees aligned float32 rows of one tensor from every model and nothing else: no file, device, thread or
rank. The runner can therefore stream, chunk, distribute and resume any method.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from emberge.contracts.block import Block
from emberge.contracts.reference import FileRef, Reference
from emberge.contracts.schedule import PerTensor

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.numerics import Operation

BasePolicy = Literal["required", "optional", "forbidden"]
WeightRole = Literal["share", "scale", "unused"]
Scope = Literal["tensor", "model"]

# The result of one `measure` call: names to tensors, arrays, numbers, or mappings of them.
Measures = Mapping[str, Any]
# stats[p] are the joined measures of pass p of the stage itself.
Stats = Sequence[Measures]


def add_measures(measures: Sequence[Measures]) -> Measures:
    """Return measures added up by key, in the given order."""
    joined: dict[str, Any] = {}
    for block_measures in measures:
        for key, value in block_measures.items():
            if key not in joined:
                joined[key] = value
            elif isinstance(value, Mapping):
                joined[key] = add_measures([joined[key], value])
            else:
                joined[key] = joined[key] + value
    return joined


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass of a stage's `measure` over all blocks before the merge."""

    scope: Scope = "tensor"
    """The tensors over which the measures are joined."""
    reads: Literal["all", "models", "nothing"] = "all"
    """The rows that are read: those of models and base, or of the models alone; with `nothing` each tensor is
    measured once, without rows."""
    join: Callable[[Sequence[Measures]], Measures] = add_measures
    """Joins measures in the given order; it must be associative, as it is called in parts."""
    is_exact: bool = False
    """True if measures are numbers such as counts, the same however a tensor is split into blocks."""
    is_sample: bool = False
    """True if only a sample of rows is taken, which the next passes then check."""
    is_needed: Callable[[Stats], bool] = lambda _: True
    """Tells from the measures of the passes before whether a tensor has to be measured."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One link of a merge's chain of stages. Fields are its YAML options; properties may depend on them.

    Type number options that may vary as `PerTensor` or `PerModel`. The runner resolves them into
    `block.options` before each call, as one float or one float64 array [models].
    """

    revision: ClassVar[int] = 1
    """Raised when the same options give other bytes than before, so that results are made again."""
    _chain_name: ClassVar[str] = ""

    @property
    def arity(self) -> range:
        """The range of model counts that the stage accepts."""
        return range(1, 1_000_000)

    @property
    def base_policy(self) -> BasePolicy:
        """The rule for a base model: required, optional or forbidden."""
        return "optional"

    @property
    def reads_base(self) -> bool:
        """True if the merge itself reads the base's rows; default: if the stage takes a base."""
        return self.base_policy != "forbidden"

    @property
    def weight_role(self) -> WeightRole:
        """The meaning of a model's weight: a share, a factor, or nothing."""
        return "share"

    @property
    def needs_torch(self) -> bool:
        """False for a stage that works with the methods of a block alone, and with NumPy; default: True.

        If no link of a chain needs torch, a merge by compiled kernels does not load it, which takes a second.
        """
        return True

    @property
    def passes(self) -> Sequence[Pass]:
        """The passes of `measure` over all blocks before the merge."""
        return ()

    @property
    def statistics_kind(self) -> str:
        """The `measure` that its statistics files must have; "" for any."""
        return ""

    @property
    def statistics_of(self) -> Literal["models", "labels"]:
        """The owners of the statistics that it reads: "models" or "labels".

        An entry of "models" was measured of exactly the model that it is used for, by the content's
        fingerprint. An entry of "labels" has the name of a model or group, and may be measured of another
        model (a specialist); each label needs one for every tensor that the stage merges, or for its layer.
        """
        return "labels"

    def needs_whole(self, block: Block) -> bool:
        """Return whether a tensor, given as a block without rows, must be one block (SVD, solve).

        Such a block counts against the memory limit.
        """
        return False

    def measure(self, block: Block, stats: Stats) -> Measures:
        """Return a block's measures in pass number len(stats), counted from 0."""
        raise NotImplementedError(f"{type(self).__name__} has passes but no measure")

    def conclude(self, block: Block, stats: Stats) -> Measures:
        """Return what follows from a pass's sums; it replaces stats[-1] in later passes and the merge.

        `block` has no rows, only name, models, weights and options. Here sums become coefficients, once per
        tensor instead of once per block. Two keys mean something to the runner. A text under "warning" is
        reported. Numbers by label under "findings", such as each model's weight in this tensor, are reported
        as means over the elements of each layer.
        """
        return stats[-1]

    def problems(self, models: Sequence[str], groups: Sequence[str]) -> Iterable[str]:
        """Yield the problems, for `check`, of merging models with these names and group labels."""
        return ()

    def schedules(self) -> dict[str, PerTensor]:
        """Return the options that vary over tensors or models, by name."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, PerTensor)}

    @property
    def name_in_recipes(self) -> str:
        """The stage's name in snake case: sign_consensus for `SignConsensus`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def name_in_messages(self) -> str:
        """The name of the registered chain that the stage was written as a link of, else its own name."""
        return self._chain_name or self.name_in_recipes

    def as_link_of(self, chain_name: str) -> Self:
        """Return the stage as a link of a registered chain, whose name messages have in place of its own."""
        link = copy.copy(self)
        # No option: equality and texts leave it out.
        object.__setattr__(link, "_chain_name", chain_name)
        return link

    def plain(self) -> Mapping[str, Any] | str:
        """Return the stage as a recipe writes it, with the options that have their defaults too."""
        # Names of chains have defaults of their own: what equals the link's default may have been asked for.
        values = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        options = {name: _convert_value(v) for name, v in values.items() if v is not None}
        return {self.name_in_recipes: options} if options else self.name_in_recipes


class MergeTransform(Stage):
    """A stage that turns N models into M models."""

    def remaining(self, models: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
        """Return the names of the models after this link; new names are also their groups."""
        return models

    def apply(self, block: Block, stats: Stats) -> Block:
        """Return the block for the next link."""
        raise NotImplementedError


class MergeStrategy(Stage):
    """A stage that merges N models into one: the last link of a chain."""

    @property
    def base_share(self) -> float:
        """The share of the base in the result, by which the models' weights are reduced."""
        return 0.0

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # The formula of a parent is not that of another `merge`.
        if "merge" in vars(cls) and "formula" not in vars(cls):
            cls.formula = MergeStrategy.formula  # type: ignore[method-assign]

    def formula(self, block: Block, stats: Stats) -> Operation | None:
        """Return a description of the merged rows, if a weighted sum or an election of signs gives them.

        A strategy defines this or `merge`. A formula is computed from the numbers as they are stored, and the
        formula of a group's members is computed together with the link that follows.
        """
        return None

    def merge(self, block: Block, stats: Stats) -> Tensor:
        """Return the merged rows, shaped like one model's: by default those of the `formula`."""
        formula = self.formula(block, stats)
        if formula is None:
            raise NotImplementedError(f"{type(self).__name__} has neither a formula nor a merge")
        merged: Tensor = block.evaluate(formula)
        return merged


def find_nested_stages(stage: Stage) -> dict[str, Stage]:
    """Return the stages among a stage's options, by name."""
    values = {f.name: getattr(stage, f.name) for f in dataclasses.fields(stage)}
    return {name: value for name, value in values.items() if isinstance(value, Stage)}


def walk_stages(links: Iterable[Stage]) -> Iterator[Stage]:
    """Yield the links of a chain and the stages nested in them."""
    for link in links:
        yield link
        yield from walk_stages(find_nested_stages(link).values())


def list_statistics_files(stage: Stage) -> list[FileRef]:
    """Return the statistics files that a stage's own options name."""
    values = [getattr(stage, f.name) for f in dataclasses.fields(stage)]
    listed = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
    return [v for v in listed if isinstance(v, FileRef)]


@dataclass(frozen=True)
class ChainSpec:
    """A registered name for a chain: its links, and the defaults that differ from the links' own."""

    links: tuple[type[Stage], ...]
    defaults: Mapping[str, Any]
    doc: str


def chain(*links: type[Stage], doc: str, **defaults: Any) -> ChainSpec:
    """Return a chain of stages to register under a name: `chain(First, Second, doc="…", option=0.5)`."""
    return ChainSpec(links, defaults, doc)


def _convert_value(value: Any) -> Any:
    """Return an option's value as a recipe writes it."""
    if isinstance(value, Stage | PerTensor):
        return value.plain()
    if isinstance(value, tuple | list):
        return [_convert_value(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _convert_value(item) for key, item in value.items()}
    return value.text if isinstance(value, Reference) else value
