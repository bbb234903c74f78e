"""The trainings behind models that one is chosen from: what the choice cost, whichever was taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from emberge import Artifact

# What a training's artifact states of its cost.
_FACTS = ("datasets", "share", "examples", "seconds", "cpu_seconds")


def trainings_behind(models: Iterable[tuple[str, Artifact | None]]) -> dict[str, Mapping[str, Any]]:
    """Return facts of each training by the name of its step, as `trained` in an artifact's details has them.

    `models` are names of steps with the artifacts of models that these made. Nothing is returned where the
    trainings behind one of them are not known.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, artifact in models:
        details = artifact.details if artifact is not None else {}
        if isinstance(details.get("trained"), Mapping):
            found |= details["trained"]
        elif "datasets" in details:
            found[name] = {key: details[key] for key in _FACTS if key in details}
        else:
            return {}
    return found
