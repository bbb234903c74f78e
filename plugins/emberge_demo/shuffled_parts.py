"""The `shuffled_parts` step: a control model with the weights of some parts in random order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge import (
    Artifact,
    ModelRef,
    Preflight,
    Problem,
    RecipeError,
    Step,
    WholeNumber,
    Workspace,
    shuffled,
    stable_seed,
)
from emberge.model_folder import Checkpoint
from emberge.tensor_files import DerivedTensor, RowReader, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ShuffledParts(Step):
    """Shuffle the weights of some parts of a model: a control that keeps their size and nothing they learned.

    In every tensor of a part, the numbers of each row are put in a random order, so the norms of rows do not
    change; a vector counts as one row. The score of such a model does not come from what the parts have
    learned: BidirLM's towers (arXiv:2604.02045) have to beat it.

    Example:
        blind:
          shuffled_parts: {model: ./omni, parts: [visual, audio_tower]}
    """

    produces = "model"

    model: ModelRef
    """The model, which stays as it is."""
    parts: tuple[str, ...]
    """Beginnings of tensor names up to a dot, such as `visual`."""
    seed: WholeNumber | None = None
    """Seed of the order; by default the recipe's."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            return
        names = Checkpoint(folder).specs
        for part in self.parts:
            if names and not any(_is_inside(name, part) for name in names):
                firsts = sorted({name.partition(".")[0] for name in names})
                message = f"{folder}: has no part '{part}'; its parts are {', '.join(firsts)}"
                yield context.problem(message, "parts")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import build_result

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            checkpoint = Checkpoint(folder)
            shuffled_names = {
                n for n in checkpoint.specs if any(_is_inside(n, p) for p in self.parts)
            }
            if not shuffled_names:
                raise RecipeError(f"{model.name}: has none of the parts {', '.join(self.parts)}")
            build_result(
                workspace,
                [
                    _shuffle_tensor(spec, workspace.seed) if name in shuffled_names else spec
                    for name, spec in checkpoint.specs.items()
                ],
                template=checkpoint,
                key=[self.parts, workspace.seed, model.fingerprint],
            )
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={
                "made_by": "shuffling the weights of",
                "tensors": len(shuffled_names),
                "seed": workspace.seed,
            },
        )


def _is_inside(name: str, part: str) -> bool:
    return f".{name}.".find(f".{part}.") >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shuffled(DerivedTensor):
    """Tensor whose rows are those of another tensor, each with its elements shuffled."""

    origin: TensorSpec = field(compare=False)
    seed: int

    @property
    def row_width(self) -> int:
        """Number of elements that are shuffled together; a vector is one row."""
        return self.elements if len(self.shape) < 2 else self.elements // self.shape[0]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        import torch

        width = self.row_width
        reader.read(self.origin, rows.start * width, into.view(-1))
        for number, row in enumerate(rows):
            order = shuffled(width, stable_seed(self.seed, self.name, row))
            into[number] = into[number, torch.from_numpy(order)]


def _shuffle_tensor(spec: TensorSpec, seed: int) -> _Shuffled:
    return _Shuffled(
        spec.name, spec.shape, spec.dtype, spec.file, spec.offset, origin=spec, seed=seed
    )
