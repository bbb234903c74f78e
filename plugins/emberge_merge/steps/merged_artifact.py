"""What a merge leaves in its artifact, for cards, reports and whoever verifies it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emberge import Artifact
from emberge.engine import plain_stage

from emberge_merge.steps.slices import slice_details, slice_models
from emberge_merge.steps.training_cost import cost_details

if TYPE_CHECKING:
    from emberge import Model
    from emberge.engine import MergeInput, MergeReport

    from emberge_merge.steps.merge import Merge, ModelEntry

__all__ = ["merged_artifact"]


def merged_artifact(
    merge: Merge,
    found: Sequence[tuple[ModelEntry, Model]],
    inputs: Sequence[MergeInput],
    report: MergeReport,
    known: Sequence[str] = (),
) -> Artifact:
    """The artifact of a merge that was done of the models `found`, which it knows as `inputs`.

    `known` are warnings that were told before the run.
    """
    sizes = [m.artifact.size if m.artifact is not None else None for _, m in found]
    sized = [size for size in sizes if size is not None]
    shared = Counter(entry.model.text for entry, _ in found)
    # How the recipe calls a model, unless one reference led to several (`$run.checkpoints`).
    parents = [e.model.text if shared[e.model.text] == 1 else m.name for e, m in found]
    details: dict[str, Any] = {
        "strategy": [plain_stage(link) for link in merge.strategy],
        "weights": dict(zip(parents, (report.weights[m.name] for m in inputs), strict=True)),
        "weight_sum": report.weight_sum,
        "models": {p: model.fingerprint for p, (_, model) in zip(parents, found, strict=True)},
        "tensors": _tensors(report),
        "dtype": report.dtype,
    }
    shares = zip(parents, (report.shares[m.name] for m in inputs), strict=True)
    varied = {parent: share.variation for parent, share in shares if share.variation}
    if varied:
        details["weights_by_layer"] = varied
    details |= _options(merge) | cost_details([(entry.model, model) for entry, model in found])
    parents += [reference.text for reference in slice_models(merge.slices)]
    return Artifact(
        kind="model",
        size=sum(sized) if sized and len(sized) == len(sizes) else None,
        parents=tuple(dict.fromkeys(parents)),
        details=details,
        warnings=tuple(known),
    )


def _tensors(report: MergeReport) -> dict[str, int]:
    ways = (report.merged, report.copied, report.dropped, report.renamed)
    names = ("merged", "copied", "dropped", "renamed")
    return {name: len(way) for name, way in zip(names, ways, strict=True)}


def _options(merge: Merge) -> dict[str, Any]:
    """What else of the recipe says how it was merged."""
    said: dict[str, Any] = {}
    if merge.base is not None:
        said["base"] = merge.base.text
    if merge.rules:
        said["rules"] = {
            rule.filter: [plain_stage(link) for link in rule.strategy] for rule in merge.rules
        }
    if merge.slices:
        said["slices"] = slice_details(merge.slices)
    return said
