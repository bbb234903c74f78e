"""Base class of the steps that make a mixture of experts from dense models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emberge import (
    Backbone,
    CheckpointError,
    Count,
    DataEntry,
    EmbergeError,
    NonNegative,
    Positive,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.files import write_text
from emberge.model_folder import Checkpoint

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.nomic_v2 import measure_lost_bias
from emberge_moe.upcycle.plan import (
    InitialState,
    Plan,
    build,
    choose_target,
    describe_result,
    refuse_dense,
    routed_tensors,
    summary,
)
from emberge_moe.upcycle.probe import (
    block_inputs,
    measure_gate_scale,
    open_model,
    probe_texts,
    read_tensor,
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

    A subclass adds the options that name the dense models and the router.
    """

    produces = "model"
    loads = ("torch",)

    layers: Layers = "alternate"
    """Layers that are routed: every second from the second (`alternate`), `all`, or their numbers from 0."""
    top_k: Count = 2
    """Experts that each token goes to."""
    normalize_gates: bool = True
    """Scale a token's chosen gates to a sum of 1."""
    gate_scale: Positive | Literal["measured"] = 1.0
    """Factor of gates that are not normalised; `measured` is 1 by their mean sum on the probe set."""
    noise: NonNegative = 0.0
    """Noise that makes the experts differ, as a share of each matrix's standard deviation."""
    target: Literal["auto", "qwen3_moe", "qwen2_moe", "mixtral", "granitemoe", "emberge_routed"] = (
        "auto"
    )
    """Class of the result: a native one where it leaves the model as it is (`auto`), or the one named."""
    export: Literal["nomic_v2"] | None = None
    """A format for other programs, in place of `target`."""
    allow_bias_loss: bool = False
    """Lose the biases that the format of `export` has no place for."""
    probe: tuple[DataEntry, ...] = ()
    """Texts to measure on: differences from the dense model, routers, gate scales."""
    backbone: Backbone = component("text_encoder", pooling="last")
    """Encoder that reads the probe set; of its hidden states, so the pooling does not matter."""
    seed: WholeNumber | None = None
    """Seed of routers and noise; by default the recipe's."""

    def __post_init__(self) -> None:
        if self.top_k > self.expert_count:
            raise ValueError(f"'top_k' is {self.top_k}, and there are {self.expert_count} experts")
        if self.export and self.target != "auto":
            raise ValueError("'export' is a target of its own; leave 'target' out")
        if self.normalize_gates and self.gate_scale != 1.0:
            raise ValueError("'gate_scale' is for gates that are not normalised")

    @property
    def expert_count(self) -> int:
        """The number of experts."""
        raise NotImplementedError

    # ── before work ─────────────────────────────────────────────────────────────────────────────

    def check_probe(self, context: Preflight) -> Iterator[Problem]:
        """Yield the problems of the probe set."""
        from emberge.data import check_datasets

        yield from check_datasets(context, self.probe, "probe", show=False).problems

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
        for message in self.backbone.describe(folder).problems:
            yield context.problem(message, "backbone")

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
            yield context.problem(str(error), "export" if self.export else "target")
            return
        if dense.checkpoint.has_weights:
            specs = [*routed_tensors(dense, [dense], routing, target, InitialState())]
            context.note("upcycling", summary(dense, target, routing, specs))

    def _plan_routing(self, dense: DenseModel) -> LayerRouting:
        """Return the routing of a dense model.

        Raises:
            ValueError: if the model lacks a layer.
        """
        scale = math.nan if self.gate_scale == "measured" else self.gate_scale
        layers = choose_layers(self.layers, dense.depth)
        return LayerRouting(
            dense.depth, layers, self.expert_count, self.top_k, self.normalize_gates, scale
        )

    def _choose_target(self, dense: DenseModel, routing: LayerRouting) -> RoutedTarget:
        """Return the format of the result.

        Raises:
            ValueError: if the format would change the model, or lose biases without permission.
        """
        target = choose_target(dense, routing, self.export or self.target)
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

    def build_routed(self, plan: Plan, router: str, workspace: Workspace) -> dict[str, Any]:
        """Build the routed model in the step's folder, and return its facts for the artifact."""
        if self.gate_scale == "measured":
            plan = replace(plan, routing=self._measure_scale(plan, workspace))
        facts = describe_result(plan, build(plan, workspace), router)
        if self.export:
            facts["lost_bias"] = measure_lost_bias(plan.dense, plan.routing.layers)
        return facts

    def _measure_scale(self, plan: Plan, workspace: Workspace) -> LayerRouting:
        """Return the routing with the gate scale that the probe set gives, measured once."""
        path = workspace.work / "gate_scale"
        if not path.is_file():
            layers, texts = plan.routing.layers, probe_texts(self.probe, workspace)
            routers = {layer: read_tensor(plan.router(layer)) for layer in layers}
            embedder = open_model(plan.dense.checkpoint.folder, self.backbone, workspace)
            paths = {layer: plan.dense.entered(layer) for layer in layers}
            scale = measure_gate_scale(block_inputs(embedder, paths, texts), routers, self.top_k)
            write_text(path, repr(scale))
        return replace(plan.routing, gate_scale=float(path.read_text(encoding="utf-8")))
