"""The `merge` step: models in, one model out, tensor by tensor."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from emberge import (
    Artifact,
    FileRef,
    MergeInput,
    MergeRequest,
    Model,
    ModelRef,
    NewVocabulary,
    PerModel,
    PerTensor,
    Preflight,
    Problem,
    Rule,
    Stage,
    Step,
    VocabularyPolicy,
    Workspace,
    plan_merge,
)

from emberge_standard.steps.contents import with_contents
from emberge_standard.steps.merged_artifact import merged_artifact
from emberge_standard.steps.sizes import Weights, size_problems, weight_of
from emberge_standard.steps.slices import SliceEntry, merge_slices, slice_models
from emberge_standard.steps.tokens import hold_vocabulary, made_vocabulary, token_policy
from emberge_standard.steps.training_cost import tell_cost

if TYPE_CHECKING:
    from emberge import MergePlan

__all__ = ["Merge", "ModelEntry", "called_apart", "merge_input"]


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model of a merge.

    `weight` is a number, a list over depth, or `[{filter, value}]`; `group` its label for staged fusion;
    `options` are its own numbers for the strategy's links: `{trim: {density: 0.7}}`.
    """

    model: ModelRef
    weight: PerTensor = field(default_factory=lambda: PerTensor(1.0))
    group: str = ""
    name: str | None = None
    options: dict[str, dict[str, PerModel]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Merge(Step):
    """Merge models into one, complete with tokenizer, configs, pooling and prompts.

    `strategy` is a name, or a list of links of which the last merges; `rules` give tensors whose name
    contains a text another one. `weights: size` multiplies each weight by the number of examples that
    the model was trained on. `template` (default: the first model) gives everything that is not merged,
    `tokenizer` the tokenizer. `missing` says what becomes of a tensor that some model lacks. `dtype` is
    what is computed in; what is stored has `out_dtype`, by default the template's.

    What training its models costs, of those that steps of the recipe train, against one training on all
    their rows, `check` tells before and `training_cost` in the artifact's details after.
    """

    produces = "model"

    models: tuple[ModelEntry, ...] = ()
    """The models; the first gives the output its configs, modules and tokenizer."""
    slices: tuple[SliceEntry, ...] = ()
    """In place of models: layers of models, stacked; each slice is merged by itself."""
    strategy: tuple[Stage, ...]
    base: ModelRef | None = None
    """Their common ancestor, where the strategy works on deltas."""
    weights: Weights = "equal"
    rules: tuple[Rule, ...] = ()
    dtype: Literal["float32", "float64"] = "float32"
    out_dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None
    template: ModelRef | None = None
    tokenizer: ModelRef | None = None
    vocabulary: VocabularyPolicy | FileRef | None = None
    """How rows line up where tokenizers differ, or a step's vocabulary in place of all of them.

    `token_aware` (the default) goes by id and token, `union` by token, `mean` by row. A step's vocabulary
    brings embeddings and a tokenizer.
    """
    missing: Literal["strict", "copy_base", "average_present"] = "strict"
    max_shard_size: str = "5GB"
    """Largest file of weights; more are split over several."""

    def __post_init__(self) -> None:
        if bool(self.models) == bool(self.slices):
            raise ValueError("it takes either 'models' or 'slices', which stack layers of models")
        if self.slices and (self.base is not None or self.weights == "size"):
            raise ValueError("with 'slices' each slice has its own base and weights")
        hold_vocabulary(self.vocabulary)
        if isinstance(self.vocabulary, FileRef) and (self.template or self.tokenizer) is not None:
            raise ValueError(
                "a 'vocabulary' has its tokenizer; leave out 'tokenizer' and 'template'"
            )

    def check(self, context: Preflight) -> Iterator[Problem]:
        tell_cost([entry.model for entry in self.models], context)
        inputs = []
        for entry in self.models:
            folder, adapter = context.model(entry.model), context.adapter(entry.model)
            if self.weights == "size":
                yield from size_problems(entry, adapter or folder, context)
            inputs.append(merge_input(entry, entry.name or entry.model.text, folder, adapter))
        base = None
        if self.base is not None:
            folder, adapter = context.model(self.base), context.adapter(self.base)
            base = MergeInput(self.base.text, folder, adapter=adapter)
        template, tokenizer = (
            context.model(ref, weights=ref is self.template) if ref is not None else None
            for ref in (self.template, self.tokenizer)
        )
        if self.template is not None and template is None:
            return  # a step is yet to make the model that everything is compared with
        request = self._request(inputs, base, template, tokenizer)
        slices = merge_slices(self.slices, lambda r: _seen(r, context))
        request = dataclasses.replace(request, inputs=called_apart(inputs), slices=slices)
        listed = [(entry.name, entry.model) for entry in self.models]
        tokens = token_policy(self.vocabulary, listed, request.inputs)
        request = dataclasses.replace(request, tokens=tokens)
        request = with_contents(request, [entry.model for entry in self.models], self.base)
        yield from self._tell(plan_merge(request), context)

    def _tell(self, plan: MergePlan, context: Preflight) -> Iterator[Problem]:
        """What a plan shows, and what is wrong with it."""
        option = "slices" if self.slices else "models"
        for problem in plan.problems:
            yield context.problem(str(problem), option)
        if plan.tokens.lines:
            context.note("tokenizers", plan.tokens.lines)
        if plan.template is not None and not plan.problems:
            context.note("merge plan", plan.lines())
            for warning in plan.warnings:
                yield context.warning(warning, option)

    def run(self, workspace: Workspace) -> Artifact:
        from emberge import merge_checkpoints  # loads torch

        found = [(e, m) for e in self.models for m in workspace.models(e.model)]
        inputs = called_apart(
            [
                dataclasses.replace(
                    merge_input(entry, entry.name or model.name, model.folder, model.adapter),
                    weight=weight_of(entry, model, self.weights),
                    fingerprint=model.fingerprint,
                )
                for entry, model in found
            ]
        )
        base = None
        if self.base is not None:
            origin = workspace.model(self.base)
            base = MergeInput(
                origin.name,
                origin.folder,
                fingerprint=origin.fingerprint,
                adapter=origin.adapter,
            )
        if any(workspace.folder.iterdir()):
            # Killed between the merge and the end of the step.
            shutil.rmtree(workspace.folder)
        report = merge_checkpoints(
            inputs,
            strategy=self.strategy,
            out=workspace.folder,
            base=base,
            rules=self.rules,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            template=self._folder(self.template, workspace),
            tokenizer=self._folder(self.tokenizer, workspace),
            missing=self.missing,
            statistics=self._statistics(workspace),
            machine=workspace.machine,
            seed=workspace.seed,
            max_shard_size=self.max_shard_size,
            provenance={"emberge": workspace.provenance},
            side=workspace.work / "merge",
            progress=lambda done, total, name: workspace.progress(done, total, "bytes", name),
            slices=merge_slices(self.slices, lambda r: _found(workspace.model(r))),
            vocabulary=self._vocabulary(workspace),
            tokens=token_policy(self.vocabulary, [(e.name, e.model) for e, _ in found], inputs),
        )
        # What `check` could foretell was told before the run, and is only kept.
        known = report.foretold if not any(r.step for r in self._references()) else ()
        for warning in report.warnings:
            if warning not in known:
                workspace.warn(warning)
        return merged_artifact(self, found, inputs, report, known)

    def _references(self) -> Iterator[ModelRef]:
        """Every model that the merge has something from."""
        yield from (entry.model for entry in self.models)
        yield from slice_models(self.slices)
        yield from (ref for ref in (self.base, self.template, self.tokenizer) if ref is not None)

    def _request(
        self,
        inputs: Sequence[MergeInput],
        base: MergeInput | None,
        template: Path | None,
        tokenizer: Path | None,
    ) -> MergeRequest:
        return MergeRequest(
            inputs=tuple(inputs),
            strategy=self.strategy,
            base=base,
            rules=self.rules,
            out_dtype=self.out_dtype,
            template=template,
            tokenizer=tokenizer,
            missing=self.missing,
            vocabulary=made_vocabulary(self.vocabulary),
        )

    def _statistics(self, workspace: Workspace) -> dict[str, Path]:
        """Where the statistics files are that the strategies name."""
        links = [*self.strategy, *(link for rule in self.rules for link in rule.strategy)]
        return {ref.text: workspace.data(ref) for link in links for ref in link.files()}

    def _vocabulary(self, workspace: Workspace) -> NewVocabulary | None:
        if not isinstance(self.vocabulary, FileRef):
            return None
        return NewVocabulary(workspace.data(self.vocabulary))

    @staticmethod
    def _folder(reference: ModelRef | None, workspace: Workspace) -> Path | None:
        return workspace.model(reference).folder if reference is not None else None


def merge_input(
    entry: ModelEntry, name: str, folder: Path | None, adapter: Path | None
) -> MergeInput:
    """A listed model as a merge takes it."""
    return MergeInput(name, folder, entry.weight, entry.group, entry.options, adapter=adapter)


def _seen(reference: ModelRef, context: Preflight) -> MergeInput:
    """A model as far as it can be seen before the run, for a slice to take layers of."""
    folder, adapter = context.model(reference), context.adapter(reference)
    return MergeInput(reference.text, folder, adapter=adapter)


def _found(model: Model) -> MergeInput:
    """A model that lies on disk, for a slice to take layers of."""
    return MergeInput(
        model.name, model.folder, fingerprint=model.fingerprint, adapter=model.adapter
    )


def called_apart(inputs: Sequence[MergeInput]) -> tuple[MergeInput, ...]:
    """The inputs with names that differ: two folders of one name are numbered."""
    counted = Counter(m.name for m in inputs)
    seen: Counter[str] = Counter()
    apart = []
    for model in inputs:
        seen[model.name] += 1
        name = f"{model.name} ({seen[model.name]})" if counted[model.name] > 1 else model.name
        apart.append(dataclasses.replace(model, name=name))
    return tuple(apart)
