"""The folders of a run's results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import Artifact, StepResult
from emberge.results import read_artifact

_TIMED_FILES = ("artifact.json", "metrics.jsonl", "README.md")
# Keys of times in the files of results, by emberge and by mteb.
_TIMES = ("seconds", "cpu_seconds", "evaluation_time", "evaluation_phases", "date")


def artifact_of(folder: Path) -> Artifact:
    """Return what a finished result is."""
    artifact = read_artifact(folder)
    assert artifact is not None
    return artifact


def read_details(folder: Path) -> Any:
    """Return the details of a result, typed or a step's own."""
    return artifact_of(folder).details


def folders(results: Mapping[str, StepResult]) -> dict[str, Path]:
    """The folder of each step's result, by the step's id."""
    return {step: result.path for step, result in results.items()}


def read_results(out: Path) -> dict[str, bytes]:
    """Return the files of all results by their folders' names and paths, without the times in them."""
    found = {}
    for link in (path for path in out.iterdir() if path.is_symlink()):
        result = link.resolve()
        for path in result.rglob("*"):
            if path.is_file() and path.name not in _TIMED_FILES:
                content = path.read_bytes()
                if path.suffix == ".json":
                    content = json.dumps(_drop_times(json.loads(content))).encode()
                found[f"{os.readlink(link)}/{path.relative_to(result)}"] = content
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder by its path; of other entries what they are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + os.readlink(path).encode()
        else:
            found[name] = path.read_bytes() if path.is_file() else b"folder"
    return found


def _drop_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_times(one) for key, one in value.items() if key not in _TIMES}
    return [_drop_times(one) for one in value] if isinstance(value, list) else value
