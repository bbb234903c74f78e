"""Work that a step expects to do with a model: the basis of estimates of time and space before a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from emberge.contracts.reference import ModelRef

WorkKind = Literal["training", "encoding", "merging"]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers of a model's parameters: all, those active for one token, and these without the word embedding.

    In a mixture of experts, a token uses as many experts as its router chooses, and all other parameters.
    `computed` are the active parameters that multiply a token: of the word embedding only one row is looked
    up.
    """

    total: int
    active: int
    computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """Work that a step expects to do with a model, as far as recipe, headers and first rows show it.

    `tokens` is an upper estimate of the tokens that pass through the model; None if it is not known, for the
    reason in `unknown`. A token takes `flops` operations for each parameter that multiplies it: 2 forward, 4
    backward, and 2 more if a gradient cache runs the forward pass twice. `memory` and `disk` are bytes for
    each parameter: of weights, gradients and optimizer on the device, and of the models that are written.
    `models` is the number of models that do the same. `parameters` are those of the model that works, if they
    are not those of `model`, such as a student of some of its layers.
    """

    token_bytes: ClassVar[int] = 4
    """Bytes of UTF-8 that a token has on average, about, in any language that its tokenizer knows."""

    kind: WorkKind
    model: ModelRef
    tokens: int | None = None
    flops: int = 2
    memory: int = 4
    disk: int = 0
    models: int = 1
    unknown: str = ""
    parameters: ParameterCount | None = None
