"""Calls of mergekit: its registry of methods, its configs, and merges of single tensors.

mergekit is imported inside functions, as its import takes seconds.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


# mergekit draws from torch's one generator, so seeding and drawing must not be parted.
_DRAW_LOCK = threading.Lock()


@contextmanager
def silencing_mergekit() -> Iterator[None]:
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


def list_methods() -> list[str]:
    """Return the names of all methods in mergekit's registry."""
    with silencing_mergekit():
        from mergekit.merge_methods import registry

    return [method.spec.name for method in registry.registered_methods()]


def find_method(name: str) -> Any | None:
    """Return mergekit's object of a merge method; None if its registry has no such name."""
    if name not in list_methods():
        return None
    from mergekit.merge_methods import registry

    return registry.get(name)


def list_parameters(method: Any) -> dict[str, Any]:
    """Return mergekit's specification of each parameter of a method, by name."""
    return {parameter.name: parameter for parameter in method.spec.parameters}


def describe_parameter_problem(parameter: Any, value: Any) -> str | None:
    """Return what mergekit has against a value of a parameter; None if it takes the value."""
    from pydantic import ValidationError

    try:
        parameter.validate(value)
    except ValidationError as error:
        return f"'{parameter.name}' cannot be {value!r}: {error.errors()[0]['msg']}"
    return None


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

    with silencing_mergekit():
        from mergekit.merge_methods.api import merge_tensors

        inputs = [*([] if base is None else [base]), *tensors]
        gpus = sorted({t.device.index or 0 for t in inputs if t.device.type == "cuda"})
        # The generator is seeded and restored: earlier draws do not change these, nor these the later ones.
        with _DRAW_LOCK, torch.no_grad(), torch.random.fork_rng(devices=gpus):
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
