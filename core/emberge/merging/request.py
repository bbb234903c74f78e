"""The request for a merge: models, base, method, options, and everything else that decides its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from emberge.contracts import (
    NumberRange,
    PerTensor,
    Stage,
    list_statistics_files,
    walk_stages,
)
from emberge.merging.chain import ModelOptions
from emberge.model_folder import list_hashed_files
from emberge.tensor_files import SHARD_BYTES

ModelPart = Literal["whole", "text"]
Missing = Literal["strict", "average_present"]
Dtype = Literal["float32", "float16", "bfloat16", "float64"]
# Stages compute in the dtype of their blocks; the dtype that is stored is free.
Compute = Literal["float32", "float64"]
# Path of a file, its size in bytes, and the time of its last change in nanoseconds.
FileState = tuple[str, int, int]


@dataclass(frozen=True)
class MergeInput:
    """One model of a merge, or its base; no two have the same `name`.

    `folder` is None if a recipe is checked before the model exists. `options` are the model's own numbers for
    the options of a link: `{"trim": {"density": …}}`. `fingerprint` identifies the model's content, and
    decides its random masks and whether a merge can be resumed. An `adapter` changes the model of `folder`,
    its base. If `part` is "text", only the trunk is used, without towers, projectors, heads and modules.
    """

    name: str
    folder: Path | None
    weight: PerTensor = field(default_factory=lambda: PerTensor(1.0))
    group: str = ""
    options: ModelOptions = field(default_factory=dict)
    fingerprint: str = ""
    adapter: Path | None = None
    part: ModelPart = "whole"

    def list_files(self) -> list[FileState]:
        """Return the states of the files that decide the model's embeddings, and of its adapter's."""
        folders = [one.resolve() for one in (self.folder, self.adapter) if one is not None]
        files = [path for folder in folders for path in list_hashed_files(folder)]
        stats = [(str(path), path.stat()) for path in files]
        return [(path, status.st_size, status.st_mtime_ns) for path, status in stats]

    @property
    def plain_options(self) -> dict[str, dict[str, Any]]:
        """The model's own options as a recipe writes them."""
        return {
            link: {name: value.plain() for name, value in numbers.items()}
            for link, numbers in self.options.items()
        }

    def identify_content(self) -> str | list[FileState]:
        """Return what identifies the content: the fingerprint, or the states of all files."""
        return self.fingerprint or self.list_files()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A strategy for the tensors whose stored name contains `filter`; the first matching rule is used."""

    filter: str
    """Text that a tensor's stored name contains; `*` means all tensors."""
    strategy: tuple[Stage, ...]
    """Strategy of these tensors."""

    def matches(self, name: str) -> bool:
        """Return whether this rule owns the tensor of this stored name."""
        return self.filter == "*" or self.filter in name


@dataclass(frozen=True, kw_only=True)
class VocabularyPolicy:
    """A policy for matching rows of embeddings and heads of models whose tokenizers differ.

    `token_aware` changes no id: rows whose token is the same in all models are merged, the row of a token
    that some models lack is the weighted mean of the other models' rows (or the only model's row), and two
    tokens with one id are refused. `union` matches rows by the tokens' text and appends tokens that the first
    model lacks; all tokenizers must use one algorithm.
    """

    policy: Literal["token_aware", "union"] = "token_aware"
    """The rule by which rows are matched."""
    pad_to: Annotated[int, NumberRange(least=1, most=2**20)] = 64
    """The number of rows of a union is padded to a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """A request for a merge, with all that decides its bytes."""

    inputs: tuple[MergeInput, ...]
    strategy: tuple[Stage, ...]
    base: MergeInput | None = None
    rules: tuple[Rule, ...] = ()
    dtype: Compute = "float32"
    """The dtype of the computation."""
    out_dtype: Dtype | None = None
    """The dtype of the stored weights; by default that of the template's."""
    seed: int = 0
    max_shard_size: int = SHARD_BYTES
    template: Path | None = None
    """The folder that gives names, stored dtypes and everything that is not weights; by default that of the
    first model that has modules, or a head of its own, else of the first."""
    tokenizer: Path | None = None
    """A folder whose tokenizer is taken instead of the template's."""
    missing: Missing | None = None
    """The policy for missing tensors; None for a step without this option, whose problems advise none."""
    statistics: Mapping[str, Path] = field(default_factory=dict)
    """Paths of statistics files of earlier steps, by the reference's text in a strategy's options."""
    layers: int | None = None
    """The number of layers that the models must have, if a recipe states it."""
    vocabulary_policy: VocabularyPolicy = field(default_factory=VocabularyPolicy)
    weights_by: str = ""
    """The source of weights that are not known when the merge is planned, such as `step found`."""
    as_adapter: bool = False
    """True if the result has no file but weights."""

    @property
    def all_inputs(self) -> tuple[MergeInput, ...]:
        """All models, and the base."""
        return self.inputs if self.base is None else (*self.inputs, self.base)

    @property
    def chains(self) -> tuple[tuple[Stage, ...], ...]:
        """All strategies: the rules' in order, and the default one."""
        return (*(rule.strategy for rule in self.rules), self.strategy)

    @property
    def uses_base(self) -> bool:
        """True if any stage works with a base."""
        stages = (stage for chain in self.chains for stage in walk_stages(chain))
        return any(stage.base_policy != "forbidden" for stage in stages)

    @property
    def uses_statistics(self) -> bool:
        """True if any stage reads statistics files."""
        stages = (stage for chain in self.chains for stage in walk_stages(chain))
        return any(s.statistics_of == "models" or list_statistics_files(s) for s in stages)

    def list_files(self) -> list[FileState]:
        """Return the states of the files of all models, and of a named template and tokenizer."""
        others = [MergeInput("", one) for one in (self.template, self.tokenizer) if one is not None]
        return [state for m in (*self.all_inputs, *others) for state in m.list_files()]

    def find_chain_number(self, name: str) -> int:
        """Return the index in `chains` of the strategy for the tensor of this stored name."""
        for number, rule in enumerate(self.rules):
            if rule.matches(name):
                return number
        return len(self.rules)
