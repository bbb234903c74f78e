"""Remarks of finished jobs, over all tensors: warnings, and findings by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge.merging.streaming.jobs import MergeJob, TensorJob
from emberge.wording import join_some

__all__ = ["findings_of", "warnings_of"]


def warnings_of(jobs: Sequence[TensorJob]) -> Iterator[str]:
    """Yield each warning of the jobs once, with the tensors that it concerns."""
    tensors: dict[str, list[str]] = {}
    for job in jobs:
        for warning in dict.fromkeys(job.remarks.get("warnings", ())):
            tensors.setdefault(warning, []).append(job.spec.name)
    for warning, names in tensors.items():
        yield f"{join_some(names, 1)}: {warning}"


def findings_of(jobs: Sequence[TensorJob]) -> dict[str, Mapping[str, float]]:
    """Return the findings of the jobs' strategies: layer to label to the mean over elements.

    A layer's mean is over those of its tensors that have the label; of equal numbers it is just that number.
    """
    means: dict[str, dict[str, float]] = {}
    elements: dict[tuple[str, str], int] = {}
    for job in jobs:
        if not isinstance(job, MergeJob):
            continue
        of_layer = means.setdefault(job.block.layer, {})
        for label, number in job.remarks.get("findings", {}).items():
            known = of_layer.setdefault(label, number)
            place = job.block.layer, label
            elements[place] = elements.get(place, 0) + job.spec.elements
            of_layer[label] = known + (number - known) * job.spec.elements / (elements[place] or 1)
    return {layer: found for layer, found in means.items() if found}
