"""Planning of a whole merge from headers and configs; loads no torch.

Adapters, statistics files and different tokenizers are planned by separate modules, which are imported only
for a merge that has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.errors import EmbergeError, Problem
from emberge.merging.match_tensors import match_tensors
from emberge.merging.merge_plan import MergePlan, add_effective_weights
from emberge.merging.plan_checks import (
    TEMPLATE_REMEDY,
    compare_folders,
    find_request_problems,
    find_template_problems,
    find_tensor_problems,
    list_token_warnings,
)
from emberge.merging.request import MergeInput, MergeRequest
from emberge.merging.template_checks import describe_size_problems
from emberge.model_folder import Checkpoint, ModelPair, describe_other_format
from emberge.tensor_names import HEAD, TensorNames, find_layer, measure_depths

if TYPE_CHECKING:
    from emberge.merging.tokens.token_plan import TokenPlan


def plan_merge(request: MergeRequest, *, whole: bool = False) -> MergePlan:
    """Plan a merge from all models' headers and configs, and list what is wrong with it as `problems`.

    No weights are read, and nothing is raised. With `whole`, a model without weights is a problem.
    """
    files = request.list_files()
    names, checkpoints, header_problems = _read_headers(request, whole=whole)
    problems = [*find_request_problems(request), *header_problems]
    model_names = {m.name for m in (*request.inputs, request.base) if m is not None}
    unseen = frozenset(model_names - names.keys())
    try:
        if request.tokenizer is not None:
            Checkpoint(request.tokenizer)  # which raises that there is no such folder
        template, pattern = _find_template(request, checkpoints, names)
        if template is not None:
            problems += find_template_problems(request, template, pattern)
    except EmbergeError as error:
        return MergePlan(
            request=request, problems=(*problems, Problem(str(error))), future_models=unseen
        )
    plan = MergePlan(
        request=request,
        files=files,
        problems=tuple(problems),
        template=template,
        future_models=unseen,
    )
    if (template is None or pattern is None) and not whole:
        return _plan_from_folders(plan, checkpoints)
    if template is None or pattern is None or (problems and unseen):
        return plan
    return _add_tensors(plan, checkpoints, names, pattern)


def use_plan(plan: MergePlan | None, request: MergeRequest) -> MergePlan:
    """Return `plan` for a request that gives the same work, or a new plan if it is None or of other work.

    A check does not know fingerprints and the seed, so these may differ. An earlier plan is used only if it
    saw all weights, and no file of a model has changed since.
    """
    is_same_work = (
        plan is not None
        and not (plan.problems or plan.future_models or request.uses_statistics)
        and plan.files == request.list_files()
        and _leave_out_unknown(plan.request) == _leave_out_unknown(request)
    )
    if plan is None or not is_same_work:
        return plan_merge(request, whole=True)
    return replace(plan, request=request)


def _leave_out_unknown(request: MergeRequest) -> MergeRequest:
    """Return a request without what a check does not know of it: fingerprints and the seed."""
    base = request.base
    return replace(
        request,
        inputs=tuple(replace(model, fingerprint="") for model in request.inputs),
        base=None if base is None else replace(base, fingerprint=""),
        seed=0,
    )


def _read_headers(
    request: MergeRequest, *, whole: bool
) -> tuple[dict[str, TensorNames], dict[str, Checkpoint], list[Problem]]:
    """Return the names of each model's tensors, its checkpoint, and the problems of reading them.

    With `whole` all weights must exist.
    """
    models = [m for m in (*request.inputs, request.base) if m is not None and m.folder is not None]
    problems: list[Problem] = []
    names: dict[str, TensorNames] = {}
    checkpoints: dict[str, Checkpoint] = {}
    for model in models:
        try:
            checkpoint = _open_model(model)
            checkpoints[model.name] = checkpoint
            if checkpoint.has_weights:
                model_names = checkpoint.tensor_names if whole else checkpoint.find_names()
                if model_names is not None:
                    is_trunk = model.part == "text"
                    names[model.name] = model_names.select_text_trunk() if is_trunk else model_names
            elif whole or describe_other_format(checkpoint.trunk):
                checkpoint.require_weights()
        except EmbergeError as error:
            problems.append(Problem(str(error)))
    return names, checkpoints, problems


def _open_model(model: MergeInput) -> Checkpoint:
    if model.adapter is None:
        return Checkpoint(model.folder or Path())
    from emberge.merging.adapter_reader import open_model

    return open_model(model.folder or Path(), model.adapter)


def _find_template(
    request: MergeRequest, checkpoints: Mapping[str, Checkpoint], names: Mapping[str, TensorNames]
) -> tuple[Checkpoint | None, TensorNames | None]:
    if request.template is not None:
        checkpoint = Checkpoint(request.template)
        return checkpoint, checkpoint.tensor_names if checkpoint.has_weights else None
    name = _choose_template(request, checkpoints, names)
    return (checkpoints[name], names[name]) if name in names else (None, None)


def _choose_template(
    request: MergeRequest, checkpoints: Mapping[str, Checkpoint], names: Mapping[str, TensorNames]
) -> str:
    """Return the name of the model whose names, configs and modules the result gets; "" if none exists.

    Models with modules come first, then those with weights, then those with a head that is not tied, and of
    equal models the first. Modules and heads do not count for an adapter, nor if only the trunk of the first
    model is used.
    """
    models = [m for m in request.inputs if m.name in checkpoints]
    is_whole = bool(models) and models[0].part == "whole" and not request.as_adapter

    def rank(model: MergeInput) -> tuple[bool, ...]:
        has_weights = model.name in names
        if not is_whole:
            return (not has_weights,)
        has_modules = model.part == "whole" and bool(checkpoints[model.name].modules)
        has_head = has_weights and names[model.name].stores_untied(HEAD)
        return not has_modules, not has_weights, not has_head

    return min(models, key=rank).name if models else ""


def _plan_from_folders(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> MergePlan:
    """Complete a plan whose template has no weights yet, from configs and tokenizers alone."""
    name = _choose_template(plan.request, checkpoints, {})
    template = plan.template or checkpoints.get(name)
    if template is None:
        return plan
    plan = replace(plan, template=template)
    plan = _add_tokens(plan, _match_tokens(plan.request, template, checkpoints, {}, None))
    folders = compare_folders(plan.request, template, checkpoints)
    return replace(
        plan,
        stated=folders.facts,
        problems=(*plan.problems, *folders.problems),
        warnings=(
            *folders.warnings,
            *plan.warnings,
            *list_token_warnings(plan.request, template, checkpoints),
        ),
    )


def _add_tensors(
    plan: MergePlan,
    checkpoints: Mapping[str, Checkpoint],
    names: Mapping[str, TensorNames],
    pattern: TensorNames,
) -> MergePlan:
    """Complete a plan with its tensors, from the headers of template and models."""
    request, template = plan.request, plan.template
    assert template is not None
    plan = _add_tokens(
        plan, tokens := _match_tokens(request, template, checkpoints, names, pattern)
    )
    is_resized = tokens is not None and tokens.rows is not None
    size_texts = describe_size_problems(template, pattern, vocabulary=not is_resized)
    wrong_sizes = [Problem(f"{text}, {TEMPLATE_REMEDY}") for text in size_texts]
    plan = replace(plan, problems=(*plan.problems, *wrong_sizes))
    if tokens is not None:
        from emberge.merging.tokens.token_rows import move_token_rows

        names, pattern = move_token_rows(names, pattern, tokens)
    folders = compare_folders(request, template, checkpoints)
    warnings = [*folders.warnings, *plan.warnings]
    if any(model.adapter is not None for model in request.inputs):
        from emberge.merging.adapter_reader import warn_of_adapter

        adapted = ((m.name, checkpoints.get(m.name)) for m in request.inputs)
        texts = (text for name, one in adapted for text in warn_of_adapter(name, one))
        warnings += dict.fromkeys(texts)
    matched = match_tensors(request, template, pattern, names)
    problems = [*plan.problems, *folders.problems]
    if folders.are_comparable:
        problems += matched.problems
    layers = {t.name: find_layer(t.name) for t in matched.tensors}
    plan = replace(
        plan,
        tensors=tuple(matched.tensors),
        dropped=tuple(matched.dropped),
        omitted={model: own.left_out for model, own in names.items() if own.left_out},
        layers=layers,
        depths=measure_depths(layers),
        stated=folders.facts,
    )
    problems += find_tensor_problems(plan)
    if not problems:
        plan = add_effective_weights(plan)
        matched.warnings += list_token_warnings(request, template, checkpoints)
    return replace(plan, problems=tuple(problems), warnings=(*warnings, *matched.warnings))


def _match_tokens(
    request: MergeRequest,
    template: Checkpoint,
    checkpoints: Mapping[str, Checkpoint],
    names: Mapping[str, TensorNames],
    pattern: TensorNames | None,
) -> TokenPlan | None:
    """Match the tokens of all models; None if tokenizers, and numbers of rows, are equal.

    Equal tokenizers with different numbers of rows have vocabularies that are padded differently.
    """
    models = [m.name for m in request.inputs]
    bases = [request.base.name] if request.base is not None else []
    source = template if request.tokenizer is None else Checkpoint(request.tokenizer)
    other_checkpoints = [checkpoints[name] for name in (*models, *bases) if name in checkpoints]
    all_equal = all(
        ModelPair(source, checkpoint).same_tokenizer for checkpoint in other_checkpoints
    )
    tables = [names[one].find_embedding() for one in (*models, *bases) if one in names]
    if all_equal and len({table.shape[0] for table in tables if table is not None}) < 2:
        return None
    from emberge.merging.tokens.match_tokens import align_tokens

    return align_tokens(
        request.tokens,
        template,
        checkpoints,
        names,
        pattern,
        models=models,
        base=next(iter(bases), None),
        tokenizer=request.tokenizer,
    )


def _add_tokens(plan: MergePlan, tokens: TokenPlan | None) -> MergePlan:
    if tokens is None:
        return plan
    return replace(
        plan,
        token_plan=tokens,
        problems=(*plan.problems, *tokens.problems),
        warnings=(*plan.warnings, *tokens.warnings),
    )
