"""The `extract_lora` step: from a fine-tune and its base to an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from emberge import Artifact, Count, ModelRef, Preflight, Problem, Step, Workspace
from emberge.merging import MergeInput, MergeRequest, plan_merge
from emberge.results import find_adapted_base

from emberge_merge.adapters.adapter_checks import find_adapter_problems
from emberge_merge.adapters.low_rank import Truncation
from emberge_merge.methods.weighted_sums import Passthrough
from emberge_merge.steps.artifacts import describe_adapter
from emberge_merge.steps.merge_options import find_in_check, find_in_run, find_one_input


@dataclass(frozen=True, kw_only=True)
class ExtractLora(Step):
    """Make a LoRA adapter of a fine-tune's changes to its base.

    Each matrix's change is cut to its `rank` largest singular values (Hu et al., 2021, arXiv:2106.09685).
    Norms, biases and other tensors that are not matrices are kept whole. The result is a folder that peft
    reads, and `$step` means the base with the adapter on it. The artifact shows how much is left out of each
    tensor.

    Example:
        adapter:
          extract_lora: {model: ./tuned, base: ./base, rank: 16}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The fine-tune."""
    base: ModelRef
    """The model that it was trained from."""
    rank: Count
    """Singular values kept of each matrix."""

    def find_adapted_model(self) -> ModelRef:
        return self.base

    def check(self, context: Preflight) -> Iterator[Problem]:
        (base,), (model,) = (find_in_check(context, one) for one in (self.base, self.model))
        plan = plan_merge(self._build_request(model))
        for problem in plan.problems:
            yield context.problem(str(problem), "model")
        if not plan.problems:
            for problem in find_adapter_problems(plan, base, Truncation(self.rank)):
                yield context.problem(str(problem), "model")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_merge.adapters.merge_to_adapter import merge_to_adapter

        find = partial(find_in_run, workspace)
        report = merge_to_adapter(
            self._build_request(find_one_input(find, self.model), workspace.seed),
            find_one_input(find, self.base),
            workspace,
            Truncation(self.rank),
        )
        return Artifact(
            kind="model",
            size=workspace.model(self.model).size,
            parents=(self.model.text,),
            origin="changed",
            made_by="extracting the changes of",
            base=find_adapted_base(workspace.model(self.base), self.base),
            adapter=describe_adapter(report, workspace),
        )

    @staticmethod
    def _build_request(model: MergeInput, seed: int = 0) -> MergeRequest:
        return MergeRequest(inputs=(model,), strategy=(Passthrough(),), seed=seed)
