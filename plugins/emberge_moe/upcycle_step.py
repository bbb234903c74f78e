"""The `upcycle` step: turn a dense model into a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

from emberge import (
    Artifact,
    CheckpointError,
    Count,
    EmbergeError,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
)
from emberge.model_folder import Checkpoint

from emberge_moe.dense_model import DenseModel, require_dense
from emberge_moe.routed_format import LayerChoice, LayerRouting, choose_layers
from emberge_moe.upcycle_plan import UpcyclePlan

_COPIES = 8


@dataclass(frozen=True, kw_only=True)
class Upcycle(Step):
    """Make a mixture of experts from a dense model: feed-forward blocks behind random routers.

    This is sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055), for encoders as in Nomic Embed v2
    (Nussbaum and Duderstadt, 2025, arXiv:2502.07972): in each of `layers` a router sends every token to
    `top_k` of `experts` copies of the block. With `normalize_gates` the routed model computes the same as the
    dense model until it is trained. Without it, as in the paper, the output of a block is multiplied by the
    sum of the chosen gates, which is below 1.

    With `members`, the experts are the blocks of these models in place of copies, and `model` is their merge,
    which gives all other tensors (Branch-Train-MiX: Sukhbaatar et al., 2024, arXiv:2403.07816). A training
    afterwards teaches the routers.

    The result is of the class `emberge_routed`: the folder contains its one code file, and other programs
    load it with `trust_remote_code=True`.

    Example:
        routed:
          upcycle: {model: ./dense, layers: alternate, experts: 8, top_k: 2}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The dense model."""
    experts: Annotated[int, NumberRange(least=2, most=1024)] | None = None
    """Number of copies of each block, by default 8."""
    members: tuple[ModelRef, ...] = ()
    """Models that each give one expert, in place of copies; `model` is a merge of them."""
    layers: LayerChoice = "alternate"
    """Layers that are routed: every second from the second (`alternate`), `all`, or their numbers from 0."""
    top_k: Count = 2
    """Experts that each token goes to."""
    normalize_gates: bool = True
    """Scale a token's chosen gates to a sum of 1."""
    seed: WholeNumber | None = None
    """Seed of routers; by default the recipe's."""

    def __post_init__(self) -> None:
        if self.members and self.experts is not None:
            raise ValueError("'members' are the experts; leave 'experts' out")
        if len(self.members) == 1:
            raise ValueError("'members' has 1; a router needs at least 2 experts")
        if self.top_k > self.expert_count:
            raise ValueError(f"'top_k' is {self.top_k}, and there are {self.expert_count} experts")

    @property
    def expert_count(self) -> int:
        """The number of experts."""
        return len(self.members) or self.experts or _COPIES

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        members = [context.whole_model(member) for member in self.members]
        if folder is None:
            return
        models: list[DenseModel] = []
        try:
            for number, one in enumerate((folder, *members)):
                option = f"members.{number - 1}" if number else "model"
                if one is not None:
                    models.append(DenseModel(Checkpoint(one)))
                    require_dense(models[-1])
            option = "model"
            dense, *experts = models
            is_complete = len(experts) == len(members)
            yield from self._check_routing(dense, experts if is_complete else [], context)
        except EmbergeError as error:
            yield context.problem(str(error), option)

    def _check_routing(
        self, dense: DenseModel, experts: Sequence[DenseModel], context: Preflight
    ) -> Iterator[Problem]:
        try:
            routing = self._plan_routing(dense)
        except ValueError as error:
            yield context.problem(str(error), "layers")
            return
        if all(model.checkpoint.has_weights for model in (dense, *experts)):
            plan = UpcyclePlan(dense, experts or [dense], routing)
            context.note("upcycling", plan.list_preview())

    def _plan_routing(self, dense: DenseModel) -> LayerRouting:
        """Return the routing of a dense model.

        Raises:
            ValueError: if the model lacks a layer.
        """
        layers = choose_layers(self.layers, dense.depth)
        return LayerRouting(layers, self.expert_count, self.top_k, self.normalize_gates)

    def run(self, workspace: Workspace) -> Artifact:
        model, *members = [workspace.model(one) for one in (self.model, *self.members)]
        with ExitStack() as opened:
            dense, *experts = [
                DenseModel(Checkpoint(opened.enter_context(workspace.whole_model(one))))
                for one in (model, *members)
            ]
            for checked in (dense, *experts):
                require_dense(checked)
            try:
                routing = self._plan_routing(dense)
            except ValueError as error:
                raise CheckpointError(f"{dense.checkpoint.folder}: {error}") from error
            contents = [one.fingerprint for one in (model, *members)]
            plan = UpcyclePlan(dense, experts or [dense], routing, workspace.seed, contents)
            plan.write(workspace)
            facts = plan.list_facts()
        return Artifact(
            kind="model",
            size=model.size,
            parents=tuple(dict.fromkeys(one.text for one in (self.model, *self.members))),
            details={"upcycled": facts},
            origin="changed",
            made_by="upcycling",
        )
