"""The `merge` step: models in, one model out, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

from emberge import (
    Artifact,
    Count,
    FileRef,
    ModelRef,
    NumberRange,
    Preflight,
    Problem,
    Stage,
    Step,
    TensorRef,
    Workspace,
    suggest,
)
from emberge.devices import parse_size
from emberge.merging import MergeRequest, Rule, VocabularyPolicy, plan_merge
from emberge.model_folder import Checkpoint

from emberge_merge.methods.weighted_sums import Linear
from emberge_merge.steps.artifacts import build_artifact
from emberge_merge.steps.merge_options import (
    FindInputs,
    ModelEntry,
    Weights,
    build_inputs,
    describe_later_weights,
    find_in_check,
    find_in_run,
    find_one_input,
    find_weight_problems,
    keep_base,
    list_members,
    locate_statistics,
    name_base,
    read_weight_factors,
)
from emberge_merge.steps.plan_note import describe_plan


@dataclass(frozen=True, kw_only=True)
class Merge(Step):
    """Merge models into one, complete with tokenizer, configs, pooling and prompts.

    `strategy` is a name, or a list of links whose last one merges; by default, models are averaged. `rules`
    give another strategy to tensors whose name contains a text. `weights: size` multiplies each weight by the
    number of examples that the model was trained on, and `weights: $found` by the weight that `find_weights`
    found for a model with the same content. `keep: 0.5` averages the merged weights with the base's, half and
    half, whatever the strategy and the rules. What is not merged (modules, prompts, lengths) must be stated
    alike, or by one model alone.

    For models that emberge trained, here or in another run, `training_cost` in the artifact's details is the
    cost of training them, compared to one training on all their rows.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {ties: {density: 0.2}}
    """

    produces = "model"

    models: tuple[ModelEntry, ...]
    """The models; the first that has modules gives names of tensors, and the order of tokens."""
    strategy: tuple[Stage, ...] = (Linear(),)
    base: TensorRef | None = None
    """Common ancestor of the models; needed if the strategy works on deltas, or with `keep`."""
    keep: Annotated[float, NumberRange(least=0, below=1)] = 0.0
    """Share of the base in the result, from 0 to below 1; it restores abilities that fine-tuning lost."""
    weights: Weights | FileRef = "equal"
    """Factors of the models' weights: none, numbers of examples (`size`), or a result of `find_weights`."""
    rules: tuple[Rule, ...] = ()
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of the computation."""
    out_dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None
    """Number type of the stored weights; by default the template's."""
    template: TensorRef | None = None
    """Model whose modules, prompts and lengths are taken where those of the models differ."""
    tokenizer: TensorRef | None = None
    """Model or folder with the tokenizer of the result; by default the template's."""
    vocabulary: VocabularyPolicy | None = None
    """Rule for the rows of tokens if tokenizers differ.

    `token_aware` (the default) matches rows by id and token, `union` by token.
    """
    missing: Literal["strict", "average_present"] = "strict"
    """A tensor that a model lacks: `strict` refuses it, `average_present` merges those of the others."""
    layers: Count | None = None
    """Number of layers that the models must have, as configs of mergekit state it."""
    max_shard_size: str = "5GB"
    """Largest size of a file of weights; larger weights are split over several files."""

    def __post_init__(self) -> None:
        if self.keep and self.base is None:
            raise ValueError(
                f"'keep: {self.keep:g}' keeps that share of the base, and there is none; name the model that "
                "these were trained from under 'base'"
            )
        text = self.weights.text if isinstance(self.weights, FileRef) else "."
        if not text.startswith(("$", ".", "/", "~")):
            words = get_args(Weights)
            raise ValueError(
                f"weights '{text}' is none of {', '.join(words)}, nor a step or a file{suggest(text, words)}"
            )

    @property
    def loads(self) -> tuple[str, ...]:
        links = [link for strategy in self._list_strategies() for link in strategy]
        needs_torch = self.keep or self.dtype != "float32" or any(one.needs_torch for one in links)
        return ("torch",) if needs_torch else ("numpy",)

    def check(self, context: Preflight) -> Iterator[Problem]:
        if self.weights != "equal":
            yield from find_weight_problems(self.models, context, self.weights)
        if self.template is not None and context.model(self.template) is None:
            return  # a step will make the template, with which everything is compared
        request = self._build_request(partial(find_in_check, context, tokenizer=self.tokenizer))
        if self.weights != "equal":
            request = replace(request, weights_by=describe_later_weights(self.weights))
        plan = plan_merge(request)
        context.keep_plan(plan)
        for problem in plan.problems:
            yield context.problem(str(problem), "models")
        if plan.token_plan is not None and plan.token_plan.summary:
            context.note("tokenizers", [plan.token_plan.summary])
        if plan.template is not None and not plan.problems:
            context.note("merge plan", partial(describe_plan, plan))
        for warning in plan.warnings if not plan.problems else ():
            yield context.warning(warning, "models")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import merge_checkpoints

        members, factors = list_members(self.models, workspace), None
        if self.weights != "equal":
            factors = read_weight_factors(self.weights, members, workspace.data)
        request = self._build_request(
            partial(find_in_run, workspace), workspace.data, factors=factors, seed=workspace.seed
        )
        report = merge_checkpoints(
            request,
            workspace.folder,
            plan=workspace.kept_plan,
            machine=workspace.machine,
            provenance={"emberge": workspace.provenance},
            side_folder=workspace.work / "merge",
            progress=lambda done, total, name: workspace.progress(done, total, "bytes", name),
        )
        # Warnings that `check` could give were given before the run, and are only kept.
        references = [
            *(entry.model for entry in self.models),
            self.base,
            self.template,
            self.tokenizer,
        ]
        has_later_models = any(one is not None and one.step is not None for one in references)
        known_warnings = () if has_later_models else report.plan.warnings
        for warning in (*report.plan.warnings, *report.warnings):
            if warning not in known_warnings:
                workspace.warn(warning)
        return build_artifact(
            members,
            report,
            base=self.base,
            keep=self.keep,
            rules=self.rules,
            known_warnings=known_warnings,
        )

    def _build_request(
        self,
        find: FindInputs,
        data: Callable[[FileRef], Path] | None = None,
        *,
        factors: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> MergeRequest:
        """Build the request with the models from `find` and the `factors` of their weights by fingerprint.

        `data` is None before any files exist.
        """
        strategy, rules = self.strategy, self.rules
        if self.keep:
            strategy = keep_base(strategy, self.keep)
            rules = tuple(
                replace(one, strategy=keep_base(one.strategy, self.keep)) for one in rules
            )
        tokenizer_source = self.tokenizer or self.template
        inputs = build_inputs(self.models, find, factors)
        return MergeRequest(
            inputs=inputs,
            strategy=strategy,
            base=name_base(find_one_input(find, self.base), inputs) if self.base else None,
            rules=rules,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            seed=seed,
            max_shard_size=parse_size(self.max_shard_size),
            template=None if self.template is None else find_one_input(find, self.template).folder,
            tokenizer=self._find_tokenizer(find, tokenizer_source) if tokenizer_source else None,
            missing=self.missing,
            statistics=locate_statistics(self._list_strategies(), data) if data is not None else {},
            layers=self.layers,
            vocabulary_policy=self.vocabulary or VocabularyPolicy(),
        )

    def _find_tokenizer(self, find: FindInputs, source: ModelRef) -> Path | None:
        """Return the folder of the tokenizer `source`, or that the template `source` has in its adapter."""
        model = find_one_input(find, source)
        if model.adapter is None or model.folder is None:
            return model.folder if self.tokenizer is not None else None
        return model.adapter if Checkpoint(model.adapter).has_tokenizer else model.folder

    def _list_strategies(self) -> list[tuple[Stage, ...]]:
        """Return the strategies of the merge and of its rules."""
        return [self.strategy, *(rule.strategy for rule in self.rules)]
