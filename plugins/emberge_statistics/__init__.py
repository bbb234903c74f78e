"""Statistics of models (Fisher information, Gram matrices, norms of changes) that merges read."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_statistics.measure_statistics import MeasureStatistics

    return {"measure_statistics": MeasureStatistics}
