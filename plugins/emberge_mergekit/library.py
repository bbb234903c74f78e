"""Calls of mergekit's merge methods; mergekit is imported inside functions, as its import is slow."""

from __future__ import annotations

import logging
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from emberge_mergekit.methods import Method, Parameter

if TYPE_CHECKING:
    from torch import Tensor


# mergekit draws from torch's one generator, so seeding and drawing must not be parted.
_DRAWING = threading.Lock()


@contextmanager
def without_chatter() -> Iterator[None]:
    """Suppress mergekit's log lines and its dependencies' deprecation warnings in the `with` block."""
    logger = logging.getLogger("mergekit")
    old_level = logger.level
    with warnings.catch_warnings():
        # They concern mergekit's own code and that of its dependencies, never what the user wrote.
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(old_level)


def _import_registry() -> Any:
    with without_chatter():
        from mergekit.merge_methods import registry

    return registry


def registered_names() -> list[str]:
    """Return the names of all methods in mergekit's registry."""
    return [method.spec.name for method in _import_registry().registered_methods()]


def registered_method(name: str) -> Method:
    """Return the declaration of a method in mergekit's registry.

    Raises:
        KeyError: if mergekit has no method of this name.
    """
    if name not in registered_names():
        raise KeyError(name)
    spec = _import_registry().get(name).spec
    contract = spec.contract
    return Method(
        name,
        {p.name: _convert_parameter(p) for p in spec.parameters},
        base=contract.base.value,
        least=contract.min_inputs,
        most=contract.max_inputs,
        models=(contract.min_non_base or 0, contract.max_non_base),
    )


def _convert_parameter(declared: Any) -> Parameter:
    default = None if declared.required else declared.default
    return Parameter(
        _find_kind(declared.value_type), declared.scope.value, default, declared.required
    )


def _find_kind(annotation: Any) -> Any:
    """Return the plain type in an annotation such as `Optional[float]`."""
    names_by_type = {bool: "bool", int: "int", float: "float", str: "str"}
    if annotation in names_by_type:
        return names_by_type[annotation]
    inner_types = [a for a in get_args(annotation) if a is not types.NoneType]
    return _find_kind(inner_types[0]) if inner_types else "str"


def merge_one(
    method: str,
    tensors: Sequence[Tensor],
    base: Tensor | None,
    parameters: Mapping[str, Any],
    *,
    name: str,
    seed: int,
) -> Tensor:
    """Merge one whole tensor of several models with a method of mergekit, and return the result.

    A list in `parameters` has a value for each model; if the method needs one for the base, that value is
    first.

    Raises:
        ValueError: if mergekit refuses the inputs or parameters.
    """
    import torch

    with without_chatter():
        from mergekit.merge_methods.api import merge_tensors

        inputs = [*([] if base is None else [base]), *tensors]
        # The generator is seeded and restored: earlier draws do not change these, nor these the later ones.
        with _DRAWING, torch.no_grad(), torch.random.fork_rng(devices=_list_gpus(inputs)):
            torch.manual_seed(seed)
            try:
                merged: Tensor = merge_tensors(
                    inputs,
                    method,
                    parameters=dict(parameters),
                    base_index=None if base is None else 0,
                    name=name,
                )
            except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
                raise ValueError(f"mergekit's {method} says: {error}") from error
    return merged


def _list_gpus(tensors: Sequence[Tensor]) -> list[int]:
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})
