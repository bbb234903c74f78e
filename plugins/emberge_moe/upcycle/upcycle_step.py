"""The `upcycle` step: a dense model made a mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    Count,
    DataEntry,
    EmbergeError,
    Model,
    ModelRef,
    NonNegative,
    NumberRange,
    Positive,
    Preflight,
    Problem,
    Stage,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import total_size
from emberge.files import write_text
from emberge.merging import MergeInput, MergeRequest, plan_merge
from emberge.model_folder import Checkpoint

from emberge_moe.upcycle.build import Plan, build, described, summary
from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.nomic_v2 import lost_bias
from emberge_moe.upcycle.plan import Beginning, choose_target, refuse_dense, routed_tensors
from emberge_moe.upcycle.probe import (
    block_inputs,
    largest_difference,
    last_states,
    open_model,
    probe_texts,
)
from emberge_moe.upcycle.routing import LayerRouting, Layers, chosen_layers, router_deviation
from emberge_moe.upcycle.target import RoutedTarget

if TYPE_CHECKING:
    from emberge.tensor_files import TensorSpec


# A larger difference from the dense model, relative to the largest state, is no rounding.
_ROUNDING = 1e-4


@dataclass(frozen=True, kw_only=True)
class Upcycle(Step):
    """Make a mixture of experts of a dense model: copies of feed-forward blocks behind routers.

    Sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055), for encoders as in Nomic Embed v2
    (Nussbaum and Duderstadt, 2025, arXiv:2502.07972): in each of `layers` a router sends every token to the
    `top_k` of `experts` copies. With `normalize_gates` the routed model is the dense one until it is
    trained; without, as in the paper, its blocks give less by the gates' sum, which `gate_scale` can make up
    for on average. `noise`, a share of each matrix's standard deviation, makes the experts differ.

    `experts` may be models in place of a number, each of which gives an expert; all else is merged by
    `strategy`, and a router's rows are the experts' mean hidden states on `probe`, one set for each expert or
    one for all. That is emberge's own, and in no paper.

    Qwen3, Llama, Mistral, EuroBERT and Granite become classes of transformers where those leave the model as
    it is: plain `AutoModel` loads the result. Any other, and what they cannot express, becomes
    `emberge_routed`: the one file of its class travels in the folder, and others load it with
    `trust_remote_code=True`. `check` and the card name which of the two a result is. `export: nomic_v2`
    writes the format of Nomic Embed v2 from a rotary XLM-R (`jina_embeddings_v3`); it has no room for the
    biases inside experts, which are lost only with `allow_bias_loss`.

    The result is compared with the dense model on `probe`, or a few sentences without one: the largest
    difference of a hidden state, relative to the largest, is in the artifact and on the card.

    Example:
        routed:
          upcycle: {model: ./dense, layers: alternate, experts: 8, top_k: 2}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef | None = None
    """The dense model; left out where `experts` are models."""
    experts: Annotated[int, NumberRange(least=2, most=1024)] | tuple[ModelRef, ...] = 8
    layers: Layers = "alternate"
    """Layers that are routed: every second from the second (`alternate`), `all`, or their numbers from 0."""
    top_k: Count = 2
    """Experts that each token goes to."""
    normalize_gates: bool = True
    gate_scale: Positive | Literal["measured"] = 1.0
    """Factor of gates that are not normalised; `measured` is 1 by their mean sum on the probe set."""
    router: str | None = None
    """`normal(0.02)`, `zeros`, or `states` of the probe set, which is for models as experts."""
    noise: NonNegative = 0.0
    target: Literal["auto", "qwen3_moe", "qwen2_moe", "mixtral", "granitemoe", "emberge_routed"] = (
        "auto"
    )
    """Class of the result: a native one where it leaves the model as it is (`auto`), or the one named."""
    export: Literal["nomic_v2"] | None = None
    """A format for other programs, in place of `target`."""
    allow_bias_loss: bool = False
    strategy: tuple[Stage, ...] = component("linear")
    """With models as experts: how everything else is merged."""
    base: ModelRef | None = None
    """Their common ancestor, where the strategy works on deltas."""
    compare: bool = True
    """Comparison with the dense model, for which each is loaded once; without it nothing is."""
    probe: tuple[DataEntry, ...] = ()
    backbone: Backbone = component("text_encoder", pooling="last")
    """Encoder that reads the probe set; of its hidden states, so the pooling does not matter."""
    seed: WholeNumber | None = None
    """Seed of routers and noise; by default the recipe's."""

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"'experts' is {self.count}; a router needs at least 2")
        if not 1 <= self.top_k <= self.count:
            raise ValueError(f"'top_k' is {self.top_k}, and there are {self.count} experts")
        if (self.model is None) != bool(self.members):
            raise ValueError("it takes either a 'model' that is copied, or models as 'experts'")
        if self.noise < 0:
            raise ValueError(f"'noise' is {self.noise}; it is a share of a standard deviation")
        if self.router not in (None, "states"):
            router_deviation(self.router or "")
        self._require_partners()

    def _require_partners(self) -> None:
        """Refuse options that have no effect without another, or beside it."""
        if not self.members and (self.base is not None or self.router == "states"):
            raise ValueError("'base' and router: states are for models as 'experts'")
        if self.export and self.target != "auto":
            raise ValueError("'export' is a target of its own; leave 'target' out")
        if self.normalize_gates and self.gate_scale != 1.0:
            raise ValueError("'gate_scale' is for gates that are not normalised")

    @property
    def members(self) -> tuple[ModelRef, ...]:
        """The models that give an expert each; none where one model gives them all."""
        return self.experts if isinstance(self.experts, tuple) else ()

    @property
    def count(self) -> int:
        """The number of experts."""
        return len(self.experts) if isinstance(self.experts, tuple) else self.experts

    @property
    def by_states(self) -> bool:
        """True if routers come from hidden states."""
        return self.router == "states" or (self.router is None and bool(self.members))

    def routing(self, dense: DenseModel) -> LayerRouting:
        """Return the routing of a dense model.

        Raises:
            ValueError: for layers that it does not have.
        """
        scale = math.nan if self.gate_scale == "measured" else self.gate_scale
        layers = chosen_layers(self.layers, dense.depth)
        return LayerRouting(
            dense.depth, layers, self.count, self.top_k, self.normalize_gates, scale
        )

    # ── before work ─────────────────────────────────────────────────────────────────────────────

    def check(self, context: Preflight) -> Iterator[Problem]:
        if self.by_states and len(self.probe) not in (1, self.count):
            yield context.problem(
                f"routers from states need a probe set for each of the {self.count} experts, or one for all; "
                "name them under 'probe', or set router: normal(0.02)",
                "probe",
            )
        option = "experts" if self.members else "model"
        folder, *_ = [context.whole_model(one) for one in self.members or (self._model,)]
        if self.members:
            yield from self._check_members(context)
        yield from self._check_data(context)
        if folder is None:
            return
        try:
            yield from self._check_dense(DenseModel(Checkpoint(folder)), context)
        except EmbergeError as error:
            yield context.problem(str(error), option)
        for message in self.backbone.describe(folder).problems:
            yield context.problem(message, "backbone")

    @property
    def _model(self) -> ModelRef:
        assert self.model is not None
        return self.model

    def _check_dense(self, dense: DenseModel, context: Preflight) -> Iterator[Problem]:
        refuse_dense(dense)
        try:
            routing = self.routing(dense)
        except ValueError as error:
            yield context.problem(str(error), "layers")
            return
        try:
            target = self._target(dense, routing)
        except ValueError as error:
            yield context.problem(str(error), "export" if self.export else "target")
            return
        if dense.checkpoint.has_weights:
            specs = [*routed_tensors(dense, [dense], routing, target, Beginning())]
            context.note("upcycling", summary(dense, target, routing, specs))

    def _check_members(self, context: Preflight) -> Iterator[Problem]:
        inputs = [
            MergeInput(m.text, context.model(m), adapter=context.adapter(m)) for m in self.members
        ]
        if any(one.folder is None for one in inputs):
            return
        base = None
        if self.base is not None:
            base = MergeInput(self.base.text, context.model(self.base))
        plan = plan_merge(self._request(inputs, base))
        for problem in plan.problems:
            yield context.problem(str(problem), "experts")
        if plan.tokens is not None and not plan.problems:
            yield context.problem(
                "the members' tokenizers differ; experts need members of one vocabulary", "experts"
            )

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        yield from check_datasets(context, self.probe, "probe", show=False).problems

    def _target(self, dense: DenseModel, routing: LayerRouting) -> RoutedTarget:
        """Return the format of the result.

        Raises:
            ValueError: for one that would change the model, or loses biases without permission.
        """
        target = choose_target(dense, routing, self.export or self.target)
        if self.export and not self.allow_bias_loss and dense.checkpoint.has_weights:
            lost = lost_bias(dense, routing.layers)
            if lost:
                raise ValueError(
                    f"{self.export} has no place for the biases inside experts, of norm {lost:.3g}; set "
                    "allow_bias_loss: true to lose them, or leave 'export' out"
                )
        return target

    # ── work ────────────────────────────────────────────────────────────────────────────────────

    def run(self, workspace: Workspace) -> Artifact:
        models = [workspace.model(m) for m in self.members] or [workspace.model(self._model)]
        with ExitStack() as opened:
            folders = [opened.enter_context(workspace.whole_model(one)) for one in models]
            members = [DenseModel(Checkpoint(folder)) for folder in folders]
            dense = members[0]
            if self.members:
                dense = DenseModel(Checkpoint(self._merged(models, folders, workspace)))
            refuse_dense(dense)
            details = self._built(dense, members, [m.fingerprint for m in models], workspace)
        return Artifact(
            kind="model",
            size=total_size(models),
            parents=tuple(m.text for m in self.members or (self._model,)),
            details=details,
        )

    def _built(
        self,
        dense: DenseModel,
        members: Sequence[DenseModel],
        content: Sequence[str],
        workspace: Workspace,
    ) -> dict[str, Any]:
        """Build the routed model from opened folders, and return what the artifact says of it."""
        router = "normal(0.02)" if self.by_states or self.router is None else self.router
        routers = None
        try:
            routing = self.routing(dense)
            target = self._target(dense, routing)
        except ValueError as error:
            raise CheckpointError(f"{dense.checkpoint.folder}: {error}") from error
        if self.by_states:
            routers = self._routers(members, dense, routing, workspace)
        beginning = Beginning(router_deviation(router), self.noise, workspace.seed, routers)
        plan = Plan(dense, members, routing, target, beginning, (*content, repr(self.strategy)))
        if self.gate_scale == "measured":
            plan = replace(plan, routing=self._scaled(plan, workspace))
        tensors = build(plan, workspace)
        facts = described(plan, tensors, "states" if self.by_states else router)
        if self.export:
            facts["lost_bias"] = lost_bias(dense, routing.layers)
        if self.compare and not self.members and target.opened:
            facts["step_0"] = self._compared(dense, plan.routing, workspace)
        return {"made_by": "upcycling", "upcycled": facts}

    def _routers(
        self,
        members: Sequence[DenseModel],
        dense: DenseModel,
        routing: LayerRouting,
        workspace: Workspace,
    ) -> Mapping[int, TensorSpec]:
        """Return routers of the members' mean states, measured once for all continuations of a killed run."""
        from emberge_moe.upcycle.router_states import mean_states, read_routers, write_routers

        place = workspace.work / "routers"
        if (place / "done").is_file():
            return read_routers(place)
        means = []
        for number, member in enumerate(members):
            own = self.probe if len(self.probe) == 1 else self.probe[number : number + 1]
            texts = probe_texts(own, workspace)
            embedder = open_model(member.checkpoint.folder, self.backbone, workspace)
            means.append(mean_states(embedder, member, routing.layers, texts))
        dtype = next(iter(dense.blocks[routing.layers[0]][1].values())).dtype
        routers = write_routers(place, means, dtype)
        (place / "done").touch()
        return routers

    def _scaled(self, plan: Plan, workspace: Workspace) -> LayerRouting:
        """Return the routing with the gate scale that a probe set gives, measured once."""
        from emberge_moe.upcycle.router_states import gate_scale, read_tensor

        place = workspace.work / "gate_scale"
        if not place.is_file():
            layers, texts = plan.routing.layers, probe_texts(self.probe, workspace)
            routers = {layer: read_tensor(plan.router(layer)) for layer in layers}
            embedder = open_model(plan.dense.checkpoint.folder, self.backbone, workspace)
            paths = {layer: plan.dense.entered(layer) for layer in layers}
            scale = gate_scale(block_inputs(embedder, paths, texts), routers, self.top_k)
            write_text(place, repr(scale))
        return replace(plan.routing, gate_scale=float(place.read_text(encoding="utf-8")))

    def _compared(
        self, dense: DenseModel, routing: LayerRouting, workspace: Workspace
    ) -> dict[str, Any]:
        """Return how far the routed model's hidden states are from the dense model's.

        Raises:
            CheckpointError: for more than rounding, where the two should be equal.
        """
        texts = probe_texts(self.probe, workspace)
        # One after the other, so that only one of them is in memory.
        first, second = (
            last_states(folder, self.backbone, texts, workspace)
            for folder in (dense.checkpoint.folder, workspace.folder)
        )
        difference = largest_difference(first, second)
        if difference > _ROUNDING and routing.normalize_gates and not self.noise:
            raise CheckpointError(
                f"the routed model's hidden states differ from the dense model's by {difference:.2g} of the "
                "largest, which is no rounding; choose another 'target'"
            )
        return {"difference": difference, "texts": len(texts)}

    def _merged(
        self, models: Sequence[Model], folders: Sequence[Path], workspace: Workspace
    ) -> Path:
        """Merge the members into one dense model in the work folder, once, and return its folder."""
        from emberge.merging import merge_checkpoints

        out = workspace.work / "merged"
        if not out.is_dir():
            inputs = [
                MergeInput(reference.text, folder, fingerprint=model.fingerprint)
                for reference, model, folder in zip(self.members, models, folders, strict=True)
            ]
            base = None
            if self.base is not None:
                found = workspace.model(self.base)
                base = MergeInput(found.name, found.folder, fingerprint=found.fingerprint)
            merge_checkpoints(
                self._request(inputs, base, workspace.seed),
                out,
                machine=workspace.machine,
                side=workspace.work / "merging",
            )
        return out

    def _request(
        self, inputs: Sequence[MergeInput], base: MergeInput | None, seed: int = 0
    ) -> MergeRequest:
        return MergeRequest(inputs=tuple(inputs), strategy=self.strategy, base=base, seed=seed)
