"""Shares of datasets in a training, found by a step and read by a sampler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import DataError
from emberge.files import read_json, write_json

MIXTURE_FILE = "mixture.json"
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class FoundMixture:
    """Shares of a training by group of datasets; they sum to 1, and mostly a group is one dataset.

    `datasets` names the datasets of each group, which divide its share by their sizes. `facts` are results
    of the search: what each group is worth, intervals, costs.
    """

    shares: Mapping[str, float]
    datasets: Mapping[str, Sequence[str]]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.shares or self.shares.keys() != self.datasets.keys():
            raise ValueError("each share belongs to a group of datasets")
        members = [name for names in self.datasets.values() for name in names]
        if not all(self.datasets.values()) or len(set(members)) < len(members):
            raise ValueError("each dataset belongs to one group, and each group has a dataset")
        for name, share in self.shares.items():
            if not math.isfinite(share) or share < 0:
                raise ValueError(f"the share of '{name}' is a number from 0 to 1, not {share:g}")
        total = sum(self.shares.values())
        if abs(total - 1) > _ROUNDING:
            raise ValueError(f"shares sum to 1, not {total:g}")

    @classmethod
    def read(cls, path: Path) -> FoundMixture:
        """Read the shares, given their file or the folder of the step that found them.

        Raises:
            DataError: if the file is missing, has no shares, or they do not sum to 1.
        """
        path = path / MIXTURE_FILE if path.is_dir() else path
        try:
            content = read_json(path)
            shares = {str(name): float(share) for name, share in content.pop("shares").items()}
            datasets = {
                str(name): tuple(map(str, _require_list(members)))
                for name, members in content.pop("datasets").items()
            }
        except OSError:
            raise DataError(f"{path}: there is no such file of shares") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DataError(
                f"{path}: it is no file of shares; name the result of `find_mixture`"
            ) from None
        try:
            return cls(shares=shares, datasets=datasets, facts=content)
        except ValueError as error:
            raise DataError(f"{path}: {error}; find the mixture anew") from None

    def write(self, folder: Path) -> None:
        """Write the file into a step's folder."""
        datasets = {name: list(members) for name, members in self.datasets.items()}
        write_json(
            folder / MIXTURE_FILE, {"shares": dict(self.shares), "datasets": datasets, **self.facts}
        )


def _require_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("names are a list")
    return value
