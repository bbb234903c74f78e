"""Planning of a whole merge from headers and configs; loads no torch.

Adapters, statistics files and different tokenizers are planned by separate modules, which are imported only
for a merge that has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from emberge.errors import EmbergeError, Problem
from emberge.merging.match_tensors import TensorMatcher
from emberge.merging.merge_plan import MergePlan, add_effective_weights
from emberge.merging.plan_checks import (
    TEMPLATE_REMEDY,
    FolderComparison,
    compare_folders,
    find_filter_problems,
    find_request_problems,
    find_template_problems,
    list_token_warnings,
)
from emberge.merging.request import MergeRequest
from emberge.merging.template_checks import describe_size_problems
from emberge.model_folder import Checkpoint, ModelPair, describe_other_format
from emberge.tensor_names import HEAD, TensorNames, find_layer, measure_depths

if TYPE_CHECKING:
    from emberge.merging.tokens.token_plan import TokenPlan


def plan_merge(request: MergeRequest, *, needs_weights: bool = False) -> MergePlan:
    """Plan a merge from all models' headers and configs, and list what is wrong with it as `problems`.

    Tensors of floats are merged. Integers are copied, and must be equal in all models; buffers are those of
    the template. Copies that the template ties, and heads that it lacks, are left out. A tensor that a model
    lacks is a problem, unless the tensor is in a head or module, or `request.missing` allows it.

    No tensor is read whole, and nothing is raised. If it `needs_weights`, a model without weights is a
    problem. A base that no strategy uses is left out of the plan's request, with a warning.
    """
    request, remarks = _leave_out_unused_base(request)
    names_by_model, checkpoints, header_problems = _read_headers(
        request, needs_weights=needs_weights
    )
    problems = [*find_request_problems(request), *header_problems]
    unseen = frozenset({m.name for m in request.all_inputs} - names_by_model.keys())
    try:
        if request.tokenizer is not None:
            Checkpoint(request.tokenizer)  # which raises that there is no such folder
        template, template_names = _find_template(request, checkpoints, names_by_model)
        if template is not None:
            problems += find_template_problems(request, template, template_names)
        # A plan with problems is made again, so it needs no files.
        files = [] if header_problems else request.list_files()
    except EmbergeError as error:
        problems.append(Problem(str(error)))
        return MergePlan(
            request=request, problems=tuple(dict.fromkeys(problems)), future_models=unseen
        )
    plan = MergePlan(
        request=request,
        files=files,
        problems=tuple(problems),
        warnings=remarks,
        template=template,
        future_models=unseen,
    )
    if template is not None and template_names is None and not needs_weights:
        return _plan_from_folders(plan, template, checkpoints)
    if template is None or template_names is None or (problems and unseen):
        return plan
    return _add_tensors(plan, template, checkpoints, names_by_model, template_names)


def use_plan(plan: MergePlan | None, request: MergeRequest) -> MergePlan:
    """Return `plan` for a request that gives the same work, or a new plan if it is None or of other work.

    A check does not know fingerprints and the seed, so these may differ. An earlier plan is used only if it
    saw all weights, and no file of a model has changed since.
    """
    used, _ = _leave_out_unused_base(request)
    is_same_work = (
        plan is not None
        and not (plan.problems or plan.future_models or request.uses_statistics)
        and plan.files == used.list_files()
        and _leave_out_unknown(plan.request) == _leave_out_unknown(used)
    )
    if plan is None or not is_same_work:
        return plan_merge(request, needs_weights=True)
    return replace(plan, request=used)


def _leave_out_unused_base(request: MergeRequest) -> tuple[MergeRequest, tuple[str, ...]]:
    """Return the request without a base that no strategy uses, and a remark if it had one."""
    if request.base is None or request.uses_base:
        return request, ()
    names = ", ".join(chain[-1].name_in_messages for chain in request.chains if chain)
    remark = f"'{names}' uses no base, so the base '{request.base.name.removesuffix(' (base)')}' is left out"
    return replace(request, base=None), (remark,)


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
    request: MergeRequest, *, needs_weights: bool
) -> tuple[dict[str, TensorNames], dict[str, Checkpoint], list[Problem]]:
    """Return the names of each model's tensors, its checkpoint, and the problems of reading them.

    If it `needs_weights`, all weights must exist.
    """
    problems: list[Problem] = []
    names_by_model: dict[str, TensorNames] = {}
    checkpoints: dict[str, Checkpoint] = {}
    for model in request.all_inputs:
        if (folder := model.folder) is None:
            continue
        try:
            if model.adapter is None:
                checkpoint = Checkpoint(folder)
            else:
                from emberge.merging.adapter_reader import open_model

                checkpoint = open_model(folder, model.adapter)
            checkpoints[model.name] = checkpoint
            if checkpoint.has_weights:
                names = checkpoint.tensor_names if needs_weights else checkpoint.find_names()
                if names is not None:
                    is_trunk = model.part == "text"
                    names_by_model[model.name] = names.select_text_trunk() if is_trunk else names
            elif needs_weights or describe_other_format(checkpoint.trunk):
                checkpoint.require_weights()
        except EmbergeError as error:
            problems.append(Problem(str(error)))
    return names_by_model, checkpoints, problems


def _find_template(
    request: MergeRequest,
    checkpoints: Mapping[str, Checkpoint],
    names_by_model: Mapping[str, TensorNames],
) -> tuple[Checkpoint | None, TensorNames | None]:
    """Return the model whose names, configs and modules the result gets, and its tensors' names if known.

    Unless the request names one, models with modules come first, then those with weights, then those with a
    head that is not tied, and of equal models the first. Modules and heads do not count for an adapter, nor
    if only the trunk of the first model is used.
    """
    if request.template is not None:
        checkpoint = Checkpoint(request.template)
        return checkpoint, checkpoint.tensor_names if checkpoint.has_weights else None
    models = [m for m in request.inputs if m.name in checkpoints]
    if not models:
        return None, None
    is_whole = models[0].part == "whole" and not request.as_adapter
    if is_whole:
        models = [m for m in models if m.part == "whole" and checkpoints[m.name].modules] or models
    models = [m for m in models if m.name in names_by_model] or models
    if is_whole:
        models = [
            m
            for m in models
            if m.name in names_by_model and names_by_model[m.name].stores_untied(HEAD)
        ] or models
    return checkpoints[models[0].name], names_by_model.get(models[0].name)


def _plan_from_folders(
    plan: MergePlan, template: Checkpoint, checkpoints: Mapping[str, Checkpoint]
) -> MergePlan:
    """Complete a plan whose template has no weights yet, from configs and tokenizers alone."""
    token_plan = _match_tokens(plan.request, template, checkpoints, {}, None)
    plan = _add_comparisons(plan, token_plan, compare_folders(plan.request, template, checkpoints))
    token_warnings = list_token_warnings(plan.request, template, checkpoints)
    return replace(plan, warnings=(*plan.warnings, *token_warnings))


def _add_tensors(
    plan: MergePlan,
    template: Checkpoint,
    checkpoints: Mapping[str, Checkpoint],
    names_by_model: Mapping[str, TensorNames],
    template_names: TensorNames,
) -> MergePlan:
    """Complete a plan with its tensors, from the headers of template and models."""
    request = plan.request
    token_plan = _match_tokens(request, template, checkpoints, names_by_model, template_names)
    has_template_rows = token_plan is None or token_plan.rows is None
    size_texts = describe_size_problems(template, template_names, vocabulary=has_template_rows)
    wrong_sizes = [Problem(f"{text}, {TEMPLATE_REMEDY}") for text in size_texts]
    folders = compare_folders(request, template, checkpoints)
    plan = replace(plan, problems=(*plan.problems, *wrong_sizes))
    plan = _add_comparisons(plan, token_plan, folders)
    if token_plan is not None:
        from emberge.merging.tokens.token_rows import move_token_rows

        names_by_model, template_names = move_token_rows(names_by_model, template_names, token_plan)
    warnings = [*plan.warnings]
    if any(model.adapter is not None for model in request.inputs):
        from emberge.merging.adapter_reader import warn_of_adapter

        for model in request.inputs:
            warnings += warn_of_adapter(model.name, checkpoints.get(model.name))
    matched = TensorMatcher(request, template, template_names, names_by_model).match()
    problems = [*plan.problems, *(matched.problems if folders.are_comparable else ())]
    layers = {t.name: find_layer(t.name) for t in matched.tensors}
    plan = replace(
        plan,
        tensors=tuple(matched.tensors),
        dropped=tuple(matched.dropped),
        omitted={m: names.left_out for m, names in names_by_model.items() if names.left_out},
        layers=layers,
        depths=measure_depths(layers),
    )
    plan = replace(plan, problems=(*problems, *find_filter_problems(plan)))
    if not plan.problems:
        plan = add_effective_weights(plan)
    if not plan.problems:
        matched.warnings += list_token_warnings(request, template, checkpoints)
    return replace(plan, warnings=tuple(dict.fromkeys([*warnings, *matched.warnings])))


def _match_tokens(
    request: MergeRequest,
    template: Checkpoint,
    checkpoints: Mapping[str, Checkpoint],
    names_by_model: Mapping[str, TensorNames],
    template_names: TensorNames | None,
) -> TokenPlan | None:
    """Match the tokens of all models; None if tokenizers, and numbers of rows, are equal.

    Equal tokenizers with different numbers of rows have vocabularies that are padded differently.
    """
    present = [m.name for m in request.all_inputs if m.name in checkpoints]
    source = template if request.tokenizer is None else Checkpoint(request.tokenizer)
    tables = [names_by_model[name].find_embedding() for name in present if name in names_by_model]
    if len({table.shape[0] for table in tables if table is not None}) < 2 and all(
        ModelPair(source, checkpoints[name]).same_tokenizer for name in present
    ):
        return None
    from emberge.merging.tokens.match_tokens import align_tokens

    return align_tokens(
        request.vocabulary_policy,
        template,
        checkpoints,
        names_by_model,
        template_names,
        models=[m.name for m in request.inputs],
        base=None if request.base is None else request.base.name,
        tokenizer=request.tokenizer,
    )


def _add_comparisons(
    plan: MergePlan, token_plan: TokenPlan | None, folders: FolderComparison
) -> MergePlan:
    """Return the plan with what the comparisons of tokenizers and of other files have shown."""
    return replace(
        plan,
        token_plan=token_plan,
        joined_facts=folders.facts,
        problems=(*plan.problems, *(token_plan.problems if token_plan else ()), *folders.problems),
        warnings=(*folders.warnings, *plan.warnings, *(token_plan.warnings if token_plan else ())),
    )
