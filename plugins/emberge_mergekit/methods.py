"""The inputs of each of mergekit's methods: its parameters, a base or none, how many models.

The table is kept here so that reading a config needs no import of mergekit, which takes seconds; a test
compares it with mergekit's own registry. A method that is not in the table is looked up in mergekit's
registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MethodName = Literal[
    "linear",
    "slerp",
    "nuslerp",
    "multislerp",
    "karcher",
    "task_arithmetic",
    "ties",
    "dare_linear",
    "dare_ties",
    "della",
    "della_linear",
    "breadcrumbs",
    "breadcrumbs_ties",
    "sce",
    "model_stock",
    "arcee_fusion",
    "nearswap",
    "passthrough",
    "ram",
    "ramplus_tl",
]
Kind = Literal["float", "int", "bool", "str"]
Scope = Literal["shared", "input", "non_base"]


@dataclass(frozen=True)
class Parameter:
    """One parameter: one value (`shared`), one for each input, or one for each model but the base."""

    kind: Kind = "float"
    scope: Scope = "shared"
    default: float | bool | str | None = None
    required: bool = False


@dataclass(frozen=True)
class Method:
    """Method of mergekit.

    `least` and `most` limit the number of inputs, the base included; `models` is the number without the base.
    """

    name: str
    parameters: Mapping[str, Parameter]
    base: Literal["ignored", "optional", "required", "forbidden"] = "ignored"
    least: int = 1
    most: int | None = None
    models: tuple[int, int | None] = (0, None)


_WEIGHT = Parameter(scope="input", required=True)
_WEIGHT_BESIDE_BASE = Parameter(scope="non_base", required=True)


def _build_delta_method(
    name: str, *, normalize: bool = False, rescale: bool = False, **more: Parameter
) -> Method:
    parameters = {
        "int8_mask": Parameter("bool", default=False),
        "normalize": Parameter("bool", default=normalize),
        "rescale": Parameter("bool", default=rescale),
        "lambda": Parameter(default=1.0),
        "weight": _WEIGHT_BESIDE_BASE,
        "density": Parameter(scope="non_base", default=1.0),
        **more,
    }
    return Method(name, parameters, base="required")


_GAMMA = Parameter(scope="non_base", default=0.01)
_EPSILON = Parameter(scope="non_base", default=0.15)
_MOVED = Parameter(default=1e-5)
_T = Parameter(required=True)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("linear", {"weight": _WEIGHT, "normalize": Parameter("bool", default=True)}),
        Method("slerp", {"t": _T}, base="required", least=2, most=2),
        Method(
            "nuslerp",
            {
                "weight": _WEIGHT_BESIDE_BASE,
                "nuslerp_row_wise": Parameter("bool", default=False),
                "nuslerp_flatten": Parameter("bool", default=True),
            },
            base="optional",
            models=(2, 2),
        ),
        Method(
            "multislerp",
            {
                "weight": _WEIGHT_BESIDE_BASE,
                "normalize_weights": Parameter("bool", default=True),
                "eps": Parameter(default=1e-8),
            },
            base="optional",
            models=(1, None),
        ),
        Method(
            "karcher",
            {"max_iter": Parameter("int", default=10), "tol": Parameter(default=1e-5)},
        ),
        _build_delta_method("task_arithmetic"),
        _build_delta_method("ties", normalize=True),
        _build_delta_method("dare_linear", rescale=True),
        _build_delta_method("dare_ties", rescale=True),
        _build_delta_method("della", normalize=True, rescale=True, epsilon=_EPSILON),
        _build_delta_method("della_linear", rescale=True, epsilon=_EPSILON),
        _build_delta_method("breadcrumbs", gamma=_GAMMA),
        _build_delta_method("breadcrumbs_ties", gamma=_GAMMA),
        Method(
            "sce",
            {
                "int8_mask": Parameter("bool", default=False),
                "select_topk": Parameter(default=1.0),
            },
            base="required",
        ),
        Method(
            "model_stock",
            {"filter_wise": Parameter("bool", default=False)},
            base="required",
            least=3,
        ),
        Method("arcee_fusion", {}, base="required", least=2, most=2),
        Method("nearswap", {"t": _T}, base="required", least=2, most=2),
        Method("passthrough", {"scale": Parameter(scope="input")}, most=1),
        Method("ram", {"epsilon": _MOVED}, base="required"),
        Method(
            "ramplus_tl",
            {"r": Parameter(default=0.1), "alpha": Parameter(default=0.2), "epsilon": _MOVED},
            base="required",
        ),
    )
}
