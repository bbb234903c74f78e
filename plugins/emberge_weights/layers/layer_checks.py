"""Problems of weights by layer that show before any work, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from emberge import Preflight, Problem
from emberge.merging import MergePlan
from emberge.wording import human_size

from emberge_weights.layers.sizes import CHUNK, ROUNDS, TEXTS
from emberge_weights.search_options import SearchOptions

__all__ = ["describe_layers", "layer_problems"]

# Options of backbones under which parameters are not those of the checkpoint, or are built into code.
_UNFIT = ("lora", "torch_compile")


def layer_problems(step: SearchOptions, context: Preflight) -> Iterator[Problem]:
    """Yield problems of options that do not go with weights by layer."""
    if step.metric != "task":
        yield context.problem(
            f"weights by layer are fitted to labels, which 'metric: {step.metric}' does without; leave "
            "'layers' out, or take 'metric: task'",
            "layers",
        )
    if step.strategy.plain() != "linear":
        yield context.problem(
            "weights by layer are fitted for the strategy 'linear'; leave 'strategy' or 'layers' out",
            "layers",
        )
    for option in _UNFIT:
        if getattr(step.backbone, option, None):
            yield context.problem(
                f"an encoder with '{option}' cannot compute with parameters that it is given; take it out of "
                "the backbone, or leave 'layers' out",
                "layers",
            )


def describe_layers(plan: MergePlan, members: int, context: Preflight) -> None:
    """Note for the terminal what weights by layer cost in passes, memory and disk."""
    bytes_ = 4 * sum(tensor.out.elements for tensor in plan.tensors if tensor.action == "merge")
    context.note(
        "weights by layer",
        [
            f"time        2 fits of {ROUNDS} rounds, each of up to {TEXTS} texts of every set: for a set "
            f"{2 * ROUNDS * TEXTS:,} texts forward twice and back once; then 2 merges, embedded and scored",
            f"memory      about {human_size(3 * bytes_)} for parameters and their gradient, and the "
            f"activations of {CHUNK} texts",
            f"disk        {human_size(members * bytes_)} in the work folder until the step is done",
        ],
    )
