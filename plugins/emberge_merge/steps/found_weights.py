"""Merge weights found by a step, stored by the content fingerprint of each model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.files import read_json, write_text

WEIGHTS_FILE = "weights.json"
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """Weights of a merge by the fingerprints of its models; `names` are those of the search.

    `facts` are results of the search: scores, intervals, options.
    """

    weights: Mapping[str, float]
    names: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> FoundWeights:
        """Read the weights, given their file or the folder of the step that found them.

        Raises:
            CheckpointError: if the file is missing or has no weights.
        """
        path = path / WEIGHTS_FILE if path.is_dir() else path
        try:
            content = read_json(path)
            models = {str(entry["fingerprint"]): entry for entry in content.pop("models")}
            weights = {key: float(entry["weight"]) for key, entry in models.items()}
            names = {key: str(entry["name"]) for key, entry in models.items()}
        except OSError:
            raise CheckpointError(f"{path}: there is no such file of weights") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise CheckpointError(
                f"{path}: it is no file of weights; name the result of `find_weights`"
            ) from None
        return cls(weights=weights, names=names, facts=content)

    def write(self, folder: Path) -> None:
        """Write the file into a step's folder."""
        models = [
            {"name": self.names.get(key, ""), "fingerprint": key, "weight": weight}
            for key, weight in self.weights.items()
        ]
        text = json.dumps({"models": models, **self.facts}, indent=1, ensure_ascii=False)
        write_text(folder / WEIGHTS_FILE, text + "\n")

    def problems(self, models: Iterable[tuple[str, str]]) -> list[str]:
        """Return reasons why the weights do not fit the models, given as (name, fingerprint) pairs.

        A model with weight zero may be missing.
        """
        name_by_fingerprint = {fingerprint: name for name, fingerprint in models}
        known = ", ".join(f"'{name}'" for name in self.names.values())
        problems = [
            f"the weights are for other models: '{name}' is none of {known}; "
            "find them again for these models"
            for fingerprint, name in name_by_fingerprint.items()
            if fingerprint not in self.weights
        ]
        missing_fingerprints = [
            k for k, w in self.weights.items() if w > _LEAST_WEIGHT and k not in name_by_fingerprint
        ]
        if not problems:
            problems += [
                f"the weights give {self.weights[key]:.3g} to '{self.names.get(key, key)}', which is not "
                "among the models; add it there"
                for key in missing_fingerprints
            ]
        return problems
