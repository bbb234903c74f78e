"""The file `costs.json` of an evaluation: costs of embedding by model content, with their machine.

They are measured, so that no two runs have the same. A file of their own keeps `scores.json` the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from emberge.errors import DataError
from emberge.evaluating.scores import EncodingCost
from emberge.files import read_json, write_json

_COSTS_FILE = "costs.json"
# Kinds of values by a field's annotation, and a bound that no measured number reaches.
_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
_MOST = 1e15


def write_costs(folder: Path, costs: Mapping[str, EncodingCost]) -> Path:
    """Write the costs, by fingerprint of the model, as `costs.json` into a folder and return its path."""
    content = {"format": 1, "costs": {model: asdict(cost) for model, cost in costs.items()}}
    path = folder / _COSTS_FILE
    write_json(path, content)
    return path


def read_costs(folder: Path) -> dict[str, EncodingCost]:
    """Return the costs in a folder by fingerprint of the model; none if they were not measured.

    Raises:
        DataError: if the file was not written by an evaluation, or a number in it is not positive and finite.
    """
    path = folder / _COSTS_FILE
    if not path.is_file():
        return {}
    try:
        content = read_json(path)
        return {str(model): _read_cost(cost) for model, cost in content["costs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: these are no costs that can be read ({error!r}); run the evaluation again"
        ) from error


def _read_cost(entry: Mapping[str, Any]) -> EncodingCost:
    cost = EncodingCost(**entry)
    for option in fields(cost):
        value = getattr(cost, option.name)
        is_sound = isinstance(value, _KINDS[str(option.type)]) and not isinstance(value, bool)
        if not is_sound or not (isinstance(value, str) or 0 < value < _MOST):
            raise ValueError(f"'{option.name}' is {value!r}")
    return cost
