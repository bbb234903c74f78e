"""The numbers of a geometry: what was measured of each model on each data set, as JSON keeps them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge_codiemb.geometry.token_geometry import MEASURES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FORMAT = 1


@dataclass(frozen=True)
class MeasuredSet:
    """Measures of one model on one data set, over texts; `skipped` counts those of fewer than two tokens.

    `states` is the dtype of the hidden states.
    """

    texts: int
    skipped: int
    states: str
    mean: Mapping[str, float]
    median: Mapping[str, float]

    @classmethod
    def of(cls, found: Mapping[str, NDArray[np.float64]], states: str) -> MeasuredSet:
        """Return the set of measures by text, NaN for those that are skipped."""
        import numpy as np

        measured = ~np.isnan(found[MEASURES[0]])
        kept = {name: values[measured] for name, values in found.items()}
        return cls(
            texts=int(measured.sum()),
            skipped=int((~measured).sum()),
            states=states,
            mean={name: float(values.mean()) for name, values in kept.items()},
            median={name: float(np.median(values)) for name, values in kept.items()},
        )


@dataclass(frozen=True)
class MeasuredModel:
    """One model's measures by data set; `probe` is the file of its embeddings of the probe set."""

    name: str
    fingerprint: str
    sets: Mapping[str, MeasuredSet]
    probe: str | None = None

    def average(self, measure: str) -> float:
        """Return the mean over data sets of a measure's means."""
        return math.fsum(one.mean[measure] for one in self.sets.values()) / len(self.sets)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> MeasuredModel:
        """Return the model of its plain values."""
        sets = {name: MeasuredSet(**one) for name, one in found["sets"].items()}
        return cls(found["name"], found["fingerprint"], sets, found["probe"])


@dataclass(frozen=True)
class Drifted:
    """Distance of one model's embeddings from the parent's: linear CKA, and the share of common neighbours.

    `cka` is None where all embeddings of one of them are equal.
    """

    cka: float | None
    neighbours: float


@dataclass(frozen=True)
class Geometry:
    """Measures of several models, differences being from the first, and drift from their parent.

    `how` are the settings and precisions that the numbers depend on.
    """

    models: tuple[MeasuredModel, ...]
    how: Mapping[str, Any]
    drift: Mapping[str, Drifted] = dataclasses.field(default_factory=dict)
    probe: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the data sets, in order."""
        return tuple(self.models[0].sets)

    def plain(self) -> dict[str, Any]:
        """Return the numbers as plain values, with each model's averages over data sets."""
        models = [dataclasses.asdict(one) for one in self.models]
        for one, model in zip(models, self.models, strict=True):
            del one["probe"]
            one["average"] = {name: model.average(name) for name in MEASURES if model.sets}
        drift = {name: dataclasses.asdict(one) for name, one in self.drift.items()}
        return {
            "format": FORMAT,
            "measured": dict(self.how),
            "models": models,
            "drift": {**self.probe, "models": drift} if drift else None,
        }
