"""Merges of folders in one call, for tests of their results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emberge import Stage
from emberge.merging import MergeInput, MergeReport, MergeRequest, merge_checkpoints

# What is said to the run of a merge, and not to its request.
_RUN = ("machine", "provenance", "side", "progress")


def merge_models(
    inputs: Sequence[MergeInput], *, strategy: Sequence[Stage], out: Path, **settings: Any
) -> MergeReport:
    """Merge models by a chain of stages; `settings` are the request's and the run's."""
    run = {name: settings.pop(name) for name in _RUN if name in settings}
    request = MergeRequest(inputs=tuple(inputs), strategy=tuple(strategy), **settings)
    return merge_checkpoints(request, out, **run)
