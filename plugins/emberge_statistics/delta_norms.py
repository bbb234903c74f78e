"""Norms of the changes from a base to a model, layer by layer."""

from __future__ import annotations

from emberge import CheckpointError, Machine, Model


def delta_norms(base: Model, model: Model, machine: Machine | None = None) -> dict[str, float]:
    """Return ‖theta − theta₀‖ by layer, over the tensors of floating-point numbers.

    Raises:
        CheckpointError: when a tensor is missing in one of them or has another shape, or has NaN.
    """
    from emberge.merging import compare_weights

    found = compare_weights(base, model, machine=machine)
    if found.notes:
        raise CheckpointError(
            f"'{base.name}' and '{model.name}': {'; '.join(found.notes)}; measure models of one architecture "
            "and tokenizer"
        )
    return {layer: sums.norms[2] for layer, sums in found.whole_layers().items()}
