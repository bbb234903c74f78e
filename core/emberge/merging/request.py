"""A merge as it is asked for: models, base, method and rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from emberge.contracts.chain import Rule
from emberge.contracts.schedule import PerTensor
from emberge.contracts.stage import Stage
from emberge.merging.planning.slices import LayerRange, MergeSlice, own_chain
from emberge.merging.stage_options import ModelOptions
from emberge.merging.tokens.supplied_vocabulary import SuppliedVocabulary
from emberge.merging.tokens.vocabulary_policy import VocabularyPolicy

__all__ = ["Dtype", "MergeInput", "MergeRequest", "Missing"]

Missing = Literal["strict", "copy_base", "average_present"]
Dtype = Literal["float32", "float16", "bfloat16", "float64"]


@dataclass(frozen=True)
class MergeInput:
    """One model of a merge. `folder` is None while a recipe is checked and the model is yet to be made.

    `options` are the model's own numbers for the options of a link: `{"trim": {"density": …}}`;
    `fingerprint` stands for its content and keys random masks and resumption; an `adapter` changes the model
    of `folder`, its base. `first` is the layer that a slice begins with.
    """

    name: str
    folder: Path | None
    weight: PerTensor = field(default_factory=lambda: PerTensor(1.0))
    group: str = ""
    options: ModelOptions = field(default_factory=dict)
    fingerprint: str = ""
    adapter: Path | None = None
    first: int | None = None


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """A merge as asked for. Fields as for `merge_checkpoints`."""

    inputs: tuple[MergeInput, ...]
    strategy: tuple[Stage, ...]
    base: MergeInput | None = None
    rules: tuple[Rule, ...] = ()
    out_dtype: Dtype | None = None
    template: Path | None = None
    tokenizer: Path | None = None
    missing: Missing = "strict"
    statistics: Mapping[str, Path] = field(default_factory=dict)
    slices: tuple[MergeSlice, ...] = ()
    part: LayerRange | None = None
    vocabulary: SuppliedVocabulary | None = None
    tokens: VocabularyPolicy = field(default_factory=VocabularyPolicy)

    @property
    def everyone(self) -> tuple[MergeInput, ...]:
        """All models, and the base or bases."""
        bases = (self.base, *(one.base for one in self.slices))
        inside = (model for one in self.slices for model in one.inputs)
        return (*self.inputs, *inside, *(base for base in bases if base is not None))

    @property
    def chains(self) -> tuple[tuple[Stage, ...], ...]:
        """The rules' strategies in order, the one for the rest, and those of slices."""
        own = (one.strategy for one in self.slices if one.strategy is not None)
        return (*(rule.strategy for rule in self.rules), self.strategy, *own)

    def chain_of(self, name: str) -> int:
        """The place in `chains` of the strategy that owns a tensor."""
        for number, rule in enumerate(self.rules):
            if rule.matches(name):
                return number
        return len(self.rules) + (own_chain(self.slices, name) if self.slices else 0)
