"""Statistics of models (Fisher information, Gram matrices, norms of changes) that merges read."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"measure_statistics": "emberge_statistics.measure_statistics:MeasureStatistics"}
