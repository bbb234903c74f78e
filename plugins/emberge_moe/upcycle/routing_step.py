"""Base class of the steps that make a mixture of experts from dense models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge import (
    CheckpointError,
    Count,
    EmbergeError,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
)
from emberge.model_folder import Checkpoint

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.nomic_v2 import measure_lost_bias
from emberge_moe.upcycle.plan import (
    Plan,
    build,
    choose_target,
    describe_result,
    refuse_dense,
    routed_tensors,
    summary,
)
from emberge_moe.upcycle.routing import (
    LayerRouting,
    Layers,
    RoutedTarget,
    choose_layers,
)


@dataclass(frozen=True, kw_only=True)
class RoutingStep(Step):
    """Step that puts experts and routers in place of a dense model's feed-forward blocks.

    A subclass adds the options that name the dense models.
    """

    produces = "model"
    loads = ("torch",)

    layers: Layers = "alternate"
    """Layers that are routed: every second from the second (`alternate`), `all`, or their numbers from 0."""
    top_k: Count = 2
    """Experts that each token goes to."""
    normalize_gates: bool = True
    """Scale a token's chosen gates to a sum of 1."""
    export: Literal["nomic_v2"] | None = None
    """A format for other programs."""
    allow_bias_loss: bool = False
    """Lose the biases that the format of `export` has no place for."""
    seed: WholeNumber | None = None
    """Seed of routers; by default the recipe's."""

    def __post_init__(self) -> None:
        if self.top_k > self.expert_count:
            raise ValueError(f"'top_k' is {self.top_k}, and there are {self.expert_count} experts")

    @property
    def expert_count(self) -> int:
        """The number of experts."""
        raise NotImplementedError

    # ── before work ─────────────────────────────────────────────────────────────────────────────

    def check_dense(
        self, folder: Path | None, option: str, context: Preflight
    ) -> Iterator[Problem]:
        """Yield the problems of the dense model that `option` names, and note the planned result."""
        if folder is None:
            return
        try:
            yield from self._check_routing(DenseModel(Checkpoint(folder)), context)
        except EmbergeError as error:
            yield context.problem(str(error), option)

    def _check_routing(self, dense: DenseModel, context: Preflight) -> Iterator[Problem]:
        refuse_dense(dense)
        try:
            routing = self._plan_routing(dense)
        except ValueError as error:
            yield context.problem(str(error), "layers")
            return
        try:
            target = self._choose_target(dense, routing)
        except ValueError as error:
            yield context.problem(str(error), "export")
            return
        if dense.checkpoint.has_weights:
            specs = [*routed_tensors(dense, [dense], routing, target)]
            context.note("upcycling", summary(dense, target, routing, specs))

    def _plan_routing(self, dense: DenseModel) -> LayerRouting:
        """Return the routing of a dense model.

        Raises:
            ValueError: if the model lacks a layer.
        """
        layers = choose_layers(self.layers, dense.depth)
        return LayerRouting(
            dense.depth, layers, self.expert_count, self.top_k, self.normalize_gates
        )

    def _choose_target(self, dense: DenseModel, routing: LayerRouting) -> RoutedTarget:
        """Return the format of the result.

        Raises:
            ValueError: if the format would change the model, or lose biases without permission.
        """
        target = choose_target(dense, routing, self.export)
        if self.export and not self.allow_bias_loss and dense.checkpoint.has_weights:
            lost_norm = measure_lost_bias(dense, routing.layers)
            if lost_norm:
                raise ValueError(
                    f"{self.export} has no place for the biases inside experts, of norm {lost_norm:.3g}; set "
                    "allow_bias_loss: true to lose them, or leave 'export' out"
                )
        return target

    # ── work ────────────────────────────────────────────────────────────────────────────────────

    def choose_routing(self, dense: DenseModel) -> tuple[LayerRouting, RoutedTarget]:
        """Return the routing and the format of a dense model's result.

        Raises:
            CheckpointError: if the model cannot be routed with these options.
        """
        refuse_dense(dense)
        try:
            routing = self._plan_routing(dense)
            return routing, self._choose_target(dense, routing)
        except ValueError as error:
            raise CheckpointError(f"{dense.checkpoint.folder}: {error}") from error

    def build_routed(self, plan: Plan, workspace: Workspace) -> dict[str, Any]:
        """Build the routed model in the step's folder, and return its facts for the artifact."""
        facts = describe_result(plan, build(plan, workspace))
        if self.export:
            facts["lost_bias"] = measure_lost_bias(plan.dense, plan.routing.layers)
        return facts
