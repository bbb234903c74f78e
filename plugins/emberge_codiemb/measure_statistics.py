"""How far models moved from their base, layer by layer, measured once for merges to come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    CheckpointError,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
)

if TYPE_CHECKING:
    from emberge import Checkpoint, TensorReader, TensorSpec

# Elements compared at once: 4 MB of each model.
PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MeasureStatistics(Step):
    """Measure how far each model moved from the base in every layer, as a statistics file.

    The norm ‖theta − theta₀‖ is over all parameters of a layer, in float64. `layer_softmax` takes it as the
    sensitivity of specialists: `deltas: $norms` (CoDiEmb, 2025, arXiv:2508.11442, eq. 11).
    """

    produces: ClassVar[ArtifactKind] = "statistics"

    models: dict[str, ModelRef]
    """The specialists, each under the name of the model or group whose weights its norms decide."""
    base: ModelRef
    """What they were trained from."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there are no models to measure", "models")
        for label in self.models:
            if "/" in label:
                yield context.problem(f"'{label}' holds a slash; name it without", "models")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge import Statistics, write_statistics

        base = workspace.model(self.base)
        models = {label: workspace.model(reference) for label, reference in self.models.items()}
        norms: dict[str, dict[str, float]] = {}
        for number, (label, model) in enumerate(models.items()):
            workspace.progress(number, len(models), "models", label)
            for layer, norm in delta_norms(base, model).items():
                norms.setdefault(layer, {})[label] = norm
        content = {label: model.fingerprint for label, model in models.items()}
        write_statistics(workspace.folder, Statistics(norms, base.fingerprint, content))
        return Artifact(
            kind="statistics",
            parents=tuple(dict.fromkeys(r.text for r in (self.base, *self.models.values()))),
            details={"delta_norms": norms},
        )


def delta_norms(base: Model, model: Model) -> dict[str, float]:
    """‖theta − theta₀‖ by layer, over the tensors that hold floating-point numbers.

    Raises:
        CheckpointError: when a tensor is missing in one of them or has another shape, or holds NaN, or
            one of them is an adapter.
    """
    from emberge import Checkpoint, TensorReader, layer_of

    for one in (base, model):
        if one.adapter is not None:
            raise CheckpointError(f"'{one.name}' is an adapter; fold it into its base first")
    first, second = Checkpoint(base.folder), Checkpoint(model.folder)
    squares: dict[str, float] = {}
    with TensorReader() as reader:
        for name, old, new in _pairs(base.name, first, model.name, second):
            layer = layer_of(name)
            moved = _moved(reader, old, new)
            if not math.isfinite(moved):
                raise CheckpointError(
                    f"{name}: '{model.name}' or '{base.name}' holds NaN or infinity"
                )
            squares[layer] = squares.get(layer, 0.0) + moved
    return {layer: math.sqrt(square) for layer, square in squares.items()}


def _pairs(
    base: str, first: Checkpoint, model: str, second: Checkpoint
) -> Iterator[tuple[str, TensorSpec, TensorSpec]]:
    from emberge import canonical_names

    known, other = canonical_names(first).specs, canonical_names(second).specs
    for name in sorted(known.keys() | other.keys()):
        old, new = known.get(name), other.get(name)
        if old is None or new is None:
            raise CheckpointError(f"{name}: '{base if old is None else model}' lacks it")
        if old.shape != new.shape:
            raise CheckpointError(
                f"{name}: '{model}' has shape {list(new.shape)}, '{base}' has {list(old.shape)}; "
                "measure models of one architecture"
            )
        if old.mergeable and new.mergeable:
            yield name, old, new


def _moved(reader: TensorReader, old: TensorSpec, new: TensorSpec) -> float:
    """The squared norm of one tensor's change, piece by piece."""
    import torch

    total = 0.0
    before, after = torch.empty(PIECE), torch.empty(PIECE)
    for start in range(0, old.elements, PIECE):
        size = min(PIECE, old.elements - start)
        reader.read(old, start, before[:size])
        reader.read(new, start, after[:size])
        change = after[:size].sub_(before[:size])
        total += float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2
    return total
