"""The `mix_experts` step: combine several dense models into one mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from emberge import (
    Artifact,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Stage,
    Workspace,
    component,
)
from emberge.contracts import total_size
from emberge.merging import MergeInput, MergeRequest, plan_merge
from emberge.model_folder import Checkpoint

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.plan import Plan
from emberge_moe.upcycle.routing_step import RoutingStep


@dataclass(frozen=True, kw_only=True)
class MixExperts(RoutingStep):
    """Make one mixture of experts from several dense models, each of which becomes an expert.

    This is Branch-Train-MiX (Sukhbaatar et al., 2024, arXiv:2403.07816): the models were trained separately
    from one ancestor. Their feed-forward blocks in `layers` become the experts, all their other tensors are
    averaged, and a training afterwards teaches the routers, which begin at random. Here `strategy` may be any
    merge method.

    The options of layers, gates and formats are the same as in `upcycle`, which copies one model instead.

    Example:
        routed:
          mix_experts: {models: [./legal, ./faq], layers: alternate, top_k: 2}
    """

    models: tuple[ModelRef, ...]
    """The dense models, of one architecture and vocabulary."""
    strategy: tuple[Stage, ...] = component("linear")
    """Merge method of all tensors that are not of experts."""
    base: ModelRef | None = None
    """The models' common ancestor, where the strategy works on deltas."""
    template: ModelRef | None = None
    """The model that decides where others state other prompts, lengths, pooling or similarity."""

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise ValueError(f"'models' has {len(self.models)}; a router needs at least 2 experts")
        super().__post_init__()

    @property
    def expert_count(self) -> int:
        return len(self.models)

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder, *_ = [context.whole_model(reference) for reference in self.models]
        yield from self._check_merge(context)
        yield from self.check_dense(folder, "models", context)

    def _check_merge(self, context: Preflight) -> Iterator[Problem]:
        inputs = [
            MergeInput(m.text, context.model(m), adapter=context.adapter(m)) for m in self.models
        ]
        if any(merge_input.folder is None for merge_input in inputs):
            return
        base = None
        if self.base is not None:
            base = MergeInput(self.base.text, context.model(self.base))
        template = context.model(self.template) if self.template is not None else None
        plan = plan_merge(self._make_request(inputs, base, template))
        for problem in plan.problems:
            yield context.problem(str(problem), "models")
        for warning in () if plan.problems else plan.warnings:
            yield context.warning(warning, "models")
        if plan.token_plan is not None and not plan.problems:
            yield context.problem(
                "the models' tokenizers differ; experts need models of one vocabulary", "models"
            )

    def run(self, workspace: Workspace) -> Artifact:
        models = [workspace.model(model) for model in self.models]
        with ExitStack() as opened:
            folders = [opened.enter_context(workspace.whole_model(model)) for model in models]
            members = [DenseModel(Checkpoint(folder)) for folder in folders]
            dense = DenseModel(Checkpoint(self._merge(models, folders, workspace)))
            routing, target = self.choose_routing(dense)
            content = [*(model.fingerprint for model in models), repr(self.strategy)]
            plan = Plan(dense, members, routing, target, workspace.seed, content)
            facts = self.build_routed(plan, workspace)
        return Artifact(
            kind="model",
            size=total_size(models),
            parents=tuple(model.text for model in self.models),
            details={"made_by": "upcycling", "upcycled": facts},
        )

    def _merge(
        self, models: Sequence[Model], folders: Sequence[Path], workspace: Workspace
    ) -> Path:
        """Merge the models into one dense model in the work folder, once, and return its folder."""
        from emberge.merging import merge_checkpoints

        out = workspace.work / "merged"
        if not out.is_dir():
            inputs = [
                MergeInput(reference.text, folder, fingerprint=model.fingerprint)
                for reference, model, folder in zip(self.models, models, folders, strict=True)
            ]
            base = None
            if self.base is not None:
                base_model = workspace.model(self.base)
                base = MergeInput(
                    base_model.name, base_model.folder, fingerprint=base_model.fingerprint
                )
            template = workspace.model(self.template).folder if self.template is not None else None
            report = merge_checkpoints(
                self._make_request(inputs, base, template, workspace.seed),
                out,
                machine=workspace.machine,
                side=workspace.work / "merging",
            )
            for warning in report.warnings if any(m.step for m in self.models) else ():
                workspace.warn(warning)
        return out

    def _make_request(
        self,
        inputs: Sequence[MergeInput],
        base: MergeInput | None,
        template: Path | None,
        seed: int = 0,
    ) -> MergeRequest:
        return MergeRequest(
            inputs=tuple(inputs), strategy=self.strategy, base=base, template=template, seed=seed
        )
