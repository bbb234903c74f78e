"""The `merge` step: models in, one model out, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

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
)
from emberge.merging import (
    MergePlan,
    MergeRequest,
    Rule,
    VocabularyPolicy,
    find_weighing_link,
    plan_merge,
)
from emberge.model_folder import Checkpoint, describe_origin
from emberge.wording import count_by_first_word, human_size, join_some

from emberge_merge.methods.weighted_sums import Linear
from emberge_merge.steps.artifacts import build_artifact
from emberge_merge.steps.found_weights import FoundWeights
from emberge_merge.steps.merge_options import (
    Find,
    ModelEntry,
    Weights,
    build_inputs,
    convert_model,
    describe_later_weights,
    find_by_check,
    find_one_model,
    find_weight_problems,
    keep_base,
    locate_statistics,
    require_keep,
    require_weights,
)

_SHOWN_NAMES = 3
_WEIGHTS_BY_ROLE = {
    "share": "what is given; each is divided by it",
    "scale": "taken as they are, as factors",
    "unused": "used by rules alone",
}


@dataclass(frozen=True, kw_only=True)
class Merge(Step):
    """Merge models into one, complete with tokenizer, configs, pooling and prompts.

    `strategy` is a name, or a list of links whose last one merges; by default, models are averaged. `rules`
    give another strategy to tensors whose name contains a text. `weights: size` multiplies each weight by the
    number of examples that the model was trained on, and `weights: $found` by the weight that `find_weights`
    found for a model with the same content. `keep: 0.5` averages the merged weights with the base's, half and
    half, whatever the strategy and the rules. What is not merged (modules, prompts, lengths) must be stated
    alike, or by one model alone; else `template` decides. `tokenizer` gives the tokenizer. `missing` decides
    about a tensor that some model lacks. `dtype` is the dtype of the computation, `out_dtype` that of the
    stored weights, by default the template's.

    For models that steps of the recipe train, `training_cost` in the artifact's details is the cost of
    training them, compared to one training on all their rows.

    Example:
        merged:
          merge:
            models: [{model: ./a, weight: 0.6}, {model: ./b, weight: 0.4}]
            strategy: linear
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
    out_dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None
    template: TensorRef | None = None
    tokenizer: TensorRef | None = None
    vocabulary: VocabularyPolicy | None = None
    """Rule for the rows of tokens if tokenizers differ.

    `token_aware` (the default) matches rows by id and token, `union` by token.
    """
    missing: Literal["strict", "average_present"] = "strict"
    layers: Count | None = None
    """Number of layers that the models must have, as configs of mergekit state it."""
    max_shard_size: str = "5GB"
    """Largest size of a file of weights; larger weights are split over several files."""

    def __post_init__(self) -> None:
        require_keep(self.keep, self.base)
        require_weights(self.weights)

    @property
    def loads(self) -> tuple[str, ...]:
        links = [link for strategy in self._list_strategies() for link in strategy]
        needs_torch = self.keep or self.dtype != "float32" or any(one.needs_torch for one in links)
        return ("torch",) if needs_torch else ("numpy",)

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from find_weight_problems(self.models, context, self.weights)
        if self.template is not None and context.model(self.template) is None:
            return  # a step is yet to make the model that everything is compared with
        request = self._build_request(find_by_check(context, self.tokenizer))
        request = replace(request, weights_by=describe_later_weights(self.weights))
        yield from self._note_plan(plan_merge(request), context)

    def _note_plan(self, plan: MergePlan, context: Preflight) -> Iterator[Problem]:
        """Note a plan for the terminal, and yield its problems and warnings."""
        for problem in plan.problems:
            yield context.problem(str(problem), "models")
        if plan.token_plan is not None and plan.token_plan.summary:
            context.note("tokenizers", [plan.token_plan.summary])
        if plan.template is not None and not plan.problems:
            context.note("merge plan", describe_plan(plan))
            for warning in plan.warnings:
                yield context.warning(warning, "models")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import merge_checkpoints

        request = self._build_request(
            lambda reference: [convert_model(model) for model in workspace.models(reference)],
            workspace.data,
            weights=self._read_weights(workspace.data),
            seed=workspace.seed,
        )
        report = merge_checkpoints(
            request,
            workspace.folder,
            machine=workspace.machine,
            provenance={"emberge": workspace.provenance},
            side=workspace.work / "merge",
            progress=lambda done, total, name: workspace.progress(done, total, "bytes", name),
        )
        # Warnings that `check` could give were given before the run, and are only kept.
        known_warnings = (
            report.plan.warnings if not any(r.step for r in self._list_references()) else ()
        )
        for warning in (*report.plan.warnings, *report.warnings):
            if warning not in known_warnings:
                workspace.warn(warning)
        members = [(e, m) for e in self.models for m in workspace.models(e.model)]
        return build_artifact(members, request, report, self._list_details(), known_warnings)

    def _build_request(
        self,
        find: Find,
        data: Callable[[FileRef], Path] | None = None,
        *,
        weights: Weights | FoundWeights = "equal",
        seed: int = 0,
    ) -> MergeRequest:
        """Build the merge request with the models from `find`; `data` is None before any files exist."""
        return MergeRequest(
            inputs=build_inputs(self.models, find, weights),
            strategy=keep_base(self.strategy, self.keep),
            base=find_one_model(find, self.base).input if self.base is not None else None,
            rules=tuple(
                replace(rule, strategy=keep_base(rule.strategy, self.keep)) for rule in self.rules
            ),
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            seed=seed,
            max_shard_size=self.max_shard_size,
            template=_find_folder(self.template, find),
            tokenizer=self._find_tokenizer(find),
            missing=self.missing,
            statistics=locate_statistics(self._list_strategies(), data) if data is not None else {},
            layers=self.layers,
            tokens=self.vocabulary or VocabularyPolicy(),
        )

    def _find_tokenizer(self, find: Find) -> Path | None:
        """Return the folder of the tokenizer that the recipe names, or that the template's adapter has."""
        reference = self.tokenizer or self.template
        if reference is None:
            return None
        model = find_one_model(find, reference)
        if model.adapter is None or model.folder is None:
            return model.folder if self.tokenizer is not None else None
        return model.adapter if Checkpoint(model.adapter).has_tokenizer else model.folder

    def _read_weights(self, data: Callable[[FileRef], Path]) -> Weights | FoundWeights:
        if not isinstance(self.weights, FileRef):
            return self.weights
        return FoundWeights.read(data(self.weights))

    def _list_strategies(self) -> list[tuple[Stage, ...]]:
        """Return the strategies of the merge and of its rules."""
        return [self.strategy, *(rule.strategy for rule in self.rules)]

    def _list_details(self) -> dict[str, Any]:
        """Return the options that the artifact keeps in addition to models and strategy."""
        details: dict[str, Any] = {}
        if self.base is not None:
            details["base"] = self.base.text
        if self.keep:
            details["keep"] = self.keep
        if self.rules:
            details["rules"] = {
                rule.filter: [link.plain() for link in rule.strategy] for rule in self.rules
            }
        return details

    def _list_references(self) -> Iterator[ModelRef]:
        """Yield the reference of every model from which the merge reads weights, tokenizer or configs."""
        yield from (entry.model for entry in self.models)
        yield from (ref for ref in (self.base, self.template, self.tokenizer) if ref is not None)


def _find_folder(reference: ModelRef | None, find: Find) -> Path | None:
    return find_one_model(find, reference).folder if reference is not None else None


def describe_plan(plan: MergePlan) -> list[str]:
    """Return the plan as lines of a label and text; a label that repeats is left blank."""
    lines, before = [], ""
    for label, words in _list_entries(plan):
        lines.append(f"{'' if label == before else label:<10}  {words}")
        before = label
    return lines


def _list_entries(plan: MergePlan) -> Iterator[tuple[str, str]]:
    request = plan.request
    if plan.tensors:
        yield from _describe_tensors(plan)
    base = f", around the base {request.base.name}" if request.base is not None else ""
    yield "method", f"{_show_chain(request.strategy)}{base}"
    if plan.tensors:
        from emberge.numerics import kernels_line

        yield "kernels", kernels_line()
    for number, rule in enumerate(request.rules):
        owned = sum(request.chain_of(tensor.name) == number for tensor in plan.tensors)
        count = f" ({owned} tensors)" if plan.tensors else ""
        yield "method", f"{_show_chain(rule.strategy)} for {rule.filter}{count}"
    if plan.tensors:
        yield from _describe_weights(plan)
    if plan.template is not None:
        yield "beside", describe_origin(plan.template)
    if plan.future_models:
        assumption = ", taken to be like the others" if plan.tensors else ""
        names = join_some(sorted(plan.future_models), _SHOWN_NAMES)
        yield "not seen", f"weights of {names}{assumption}"


def _describe_tensors(plan: MergePlan) -> Iterator[tuple[str, str]]:
    parts = [f"{len(plan.merged)} merged"] if plan.merged else []
    for word, names in (("copied", plan.copied), ("dropped", plan.dropped)):
        more = ", …" if len(names) > _SHOWN_NAMES else ""
        listed = f"{', '.join(names[:_SHOWN_NAMES])}{more}"
        parts += [f"{len(names)} {word} ({listed})"] if names else []
    yield "tensors", ", ".join(parts)
    for name, left in plan.omitted.items():
        yield "left out", f"of '{name}': {count_by_first_word(left)}"
    yield "writes", f"{human_size(plan.bytes)}, {plan.dtype}"


def _show_chain(links: Sequence[Stage]) -> str:
    return " → ".join(_show_link(link.plain()) for link in links)


def _show_link(plain: Mapping[str, object] | str) -> str:
    if isinstance(plain, str):
        return plain
    name, options = next(iter(plain.items()))
    listed = options.items() if isinstance(options, Mapping) else ()
    return f"{name} ({', '.join(f'{key} {value}' for key, value in listed)})"


def _describe_weights(plan: MergePlan) -> Iterator[tuple[str, str]]:
    link, labels = find_weighing_link(plan.request.strategy, plan.request.inputs)
    if link.weight_role == "unused" and not plan.request.rules:
        yield "weights", f"not used by {link.name_in_messages}"
        return
    base_share = plan.weights.get(plan.request.base.name, 0.0) if plan.request.base else 0.0
    left_share = f"the {1 - base_share:.3g} that the base leaves"
    if plan.request.weights_by:
        remainder = f", of {left_share}" if base_share else ""
        yield "weights", f"by {plan.request.weights_by}{remainder}"
        return
    width = min(40, max((len(name) for name in plan.weights), default=0))
    for name, weight in plan.weights.items():
        least, largest = (f"{bound:.3g}" for bound in plan.weight_ranges[name])
        varied = f" ({least} to {largest})" if least != largest else ""
        yield "weights", f"{name:<{width}}  {weight:.3g}{varied}"
    words = _WEIGHTS_BY_ROLE[link.weight_role]
    words += ", within its group" if any(labels.values()) and link.weight_role == "share" else ""
    factor = f"; times {left_share}" if base_share else ""
    yield "weights", f"{'sum':<{width}}  {plan.weight_sum:.3g}: {words}{factor}"
