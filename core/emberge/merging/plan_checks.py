"""Problems and warnings of a merge beyond shapes and names: stages, bases, folders, filters, weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.contracts import MergeStrategy, MergeTransform, PerModel, Stage, walk_stages
from emberge.errors import Problem, suggest
from emberge.merging.chain import ModelOptions, simplify_name
from emberge.merging.merge_plan import MergePlan, find_weighing_link
from emberge.merging.request import MergeRequest
from emberge.merging.template_checks import describe_omissions, describe_template_problems
from emberge.model_folder import Checkpoint, JoinedFacts, ModelPair, TokenizerFiles, TrunkConfig
from emberge.tensor_names import HEAD, TensorNames
from emberge.wording import count_noun, join_some

# The other remedy for a problem of the model that gives the result its files.
TEMPLATE_REMEDY = "or name another model as 'template'"
UPCYCLING_KEY = "upcycling"
"""Key of config.json for the fingerprint of the upcycling that a model comes from."""


def find_request_problems(request: MergeRequest) -> Iterator[Problem]:
    """Yield the problems of a request that are found without reading a folder."""
    names = [m.name for m in request.inputs]
    groups = [m.group for m in request.inputs]
    if not names:
        yield Problem("there are no models to merge; list them under 'models'")
    name_counts = Counter(m.name for m in request.all_inputs)
    for name in sorted(name for name, count in name_counts.items() if count > 1):
        yield Problem(f"two models are called '{name}'; give each its own name")
    for chain in request.chains:
        yield from _find_chain_problems(chain, names, groups, request.base is not None)
    if request.uses_statistics:
        from emberge.merging.merge_statistics import find_statistics_problems

        yield from find_statistics_problems(request)
    if request.base is not None:
        yield from _find_base_problems(request)
    stages = [link for chain in request.chains for link in walk_stages(chain)]
    for model in request.inputs:
        if model.options:
            yield from _find_option_problems(model.name, model.options, stages)


def _find_chain_problems(
    chain: Sequence[Stage], models: Sequence[str], groups: Sequence[str], has_base: bool
) -> Iterator[Problem]:
    """Yield the problems of a chain for models with these names and groups: of its order and of each link."""
    if not chain or not isinstance(chain[-1], MergeStrategy):
        ending = f"'{chain[-1].name_in_messages}' is a transform" if chain else "it is empty"
        yield Problem(f"a strategy must end with a link that merges, and {ending}")
    for link in chain[:-1]:
        if not isinstance(link, MergeTransform):
            yield Problem(f"'{link.name_in_messages}' ends a strategy and can only stand last")
    for link, remaining_models, labels in _trace_models(chain, models, groups):
        problems = list(_find_link_problems(link, remaining_models, labels, has_base))
        if remaining_models != models:
            readers = (one for one in walk_stages([link]) if one.statistics_of == "models")
            problems += [Problem(_explain_order(one)) for one in readers]
        yield from problems
        if problems:
            return  # what the next link would see is not known


def find_count_problems(
    chain: Sequence[Stage], models: Sequence[str], groups: Sequence[str]
) -> Iterator[Problem]:
    """Yield the problems of a chain's links with the models that have a tensor, if others lack it."""
    for link, remaining_models, labels in _trace_models(chain, models, groups):
        yield from _find_link_problems(link, remaining_models, labels, has_base=True)


def _trace_models(
    chain: Sequence[Stage], models: Sequence[str], groups: Sequence[str]
) -> Iterator[tuple[Stage, Sequence[str], Sequence[str]]]:
    """Yield each link with the names and groups of the models that reach it."""
    for link in chain:
        yield link, models, groups
        if isinstance(link, MergeTransform):
            remaining_models = link.remaining(models, groups)
            groups = groups if remaining_models == models else remaining_models
            models = remaining_models


def _find_link_problems(
    link: Stage, models: Sequence[str], groups: Sequence[str], has_base: bool
) -> Iterator[Problem]:
    """Yield the problems of a link for the models that reach it."""
    if models and len(models) not in link.arity:
        yield Problem(_explain_arity(link, len(models)))
    own = getattr(type(link), "formula", None), getattr(type(link), "merge", None)
    if own == (MergeStrategy.formula, MergeStrategy.merge):
        yield Problem(f"'{link.name_in_messages}' has neither a formula nor a merge; define one")
    if link.base_policy == "required" and not has_base:
        yield Problem(f"'{link.name_in_messages}' needs a base; name it under 'base'")
    for text in link.problems(models, groups):
        yield Problem(f"'{link.name_in_messages}': {text}")


def _explain_order(link: Stage) -> str:
    return (
        f"'{link.name_in_messages}' needs what was measured of the very models, and a link before it merges "
        "them; merge by it inside the groups, or alone"
    )


def _explain_arity(link: Stage, models: int) -> str:
    least, most = link.arity.start, link.arity.stop - 1
    limit, prefix = (least, "at least ") if models < least else (most, "at most ")
    allowed_counts = (
        f"{'' if least == most else prefix}{limit} {'model' if limit == 1 else 'models'}"
    )
    verb = "is 1" if models == 1 else f"are {models}"
    return f"'{link.name_in_messages}' takes {allowed_counts} and there {verb}"


def _find_option_problems(
    model: str, options: ModelOptions, stages: Sequence[Stage]
) -> Iterator[Problem]:
    """Yield the problems of one model's own options, given all stages of the merge."""
    stage_by_name = {stage.name_in_recipes: stage for stage in stages}
    stage_by_key = {simplify_name(name): stage for name, stage in stage_by_name.items()}
    for name, schedules in options.items():
        stage = stage_by_key.get(simplify_name(name))
        if stage is None:
            hint = suggest(name, stage_by_name)
            yield Problem(f"'{model}' has options for '{name}', which is no link here{hint}")
            continue
        limits = {n: s.within for n, s in stage.schedules().items() if isinstance(s, PerModel)}
        for option, schedule in schedules.items():
            if option not in limits:
                hint = suggest(option, limits) or f"; per model: {', '.join(limits) or 'nothing'}"
                yield Problem(
                    f"'{name}' has no option '{option}' that a model may set itself{hint}"
                )
                continue
            try:
                PerModel(list(schedule.entries), within=limits[option])
            except ValueError as error:
                yield Problem(f"'{model}': {name}.{option}: {error}")


def _find_base_problems(request: MergeRequest) -> Iterator[Problem]:
    base = request.base
    assert base is not None
    policies = {link.base_policy for chain in request.chains for link in walk_stages(chain)}
    # Elsewhere it is a model like others.
    for model in request.inputs if "required" in policies else ():
        is_same_folder = model.folder is not None and base.folder is not None and not model.adapter
        if is_same_folder and model.folder.resolve() == base.folder.resolve():  # type: ignore[union-attr]
            yield Problem(
                f"the base is also listed as the model '{model.name}', whose delta would be zero; "
                "take it out of one place"
            )


@dataclass(frozen=True)
class FolderComparison:
    """Problems and warnings of all models' configs, and the facts of the result.

    `are_comparable` is False if the tensors of two models are incomparable, as their architectures differ.
    """

    problems: list[Problem]
    warnings: list[str]
    facts: JoinedFacts
    are_comparable: bool


def compare_folders(
    request: MergeRequest, template: Checkpoint, checkpoints: Mapping[str, Checkpoint]
) -> FolderComparison:
    """Compare architectures and stated facts of all models, and of the base, with the template's."""
    option = "base" if request.as_adapter else "template"
    remedy = f"merge models of one architecture, or choose one with '{option}'"
    members = {m.name: checkpoints[m.name] for m in request.inputs if m.name in checkpoints}
    differences = list(_compare_architectures(request, template, members))
    facts = JoinedFacts.of(
        template,
        members,
        chosen=request.template is not None,
        trunks=[m.name for m in request.inputs if m.part == "text"],
        adapter=request.as_adapter,
    )
    warnings = list(describe_omissions(template))
    problems: list[Problem] = []
    if request.template is not None:
        warnings += [f"{difference}; the template is followed" for difference in differences]
    else:
        problems += [Problem(f"{difference}; {remedy}") for difference in differences]
    are_comparable = not problems
    # What follows from another architecture would only repeat it.
    if are_comparable:
        problems += facts.problems
        if any(UPCYCLING_KEY in model.config for model in members.values()):
            problems += _find_other_experts(members)
    first = next(iter(members.values()), None)
    if request.template is None and first is not None and first.folder != template.folder:
        warnings += _name_template(template, members)
    warnings += _find_weight_warnings(request)
    warnings += facts.warnings
    base = checkpoints.get(request.base.name) if request.base is not None else None
    if base is not None:
        names = f"'{template.folder.name}' and the base"
        texts = ModelPair(template, base).find_differences(modules=False)
        problems += [Problem(f"{names}: {text}; {remedy}") for text in texts]
    return FolderComparison(problems, warnings, facts, are_comparable)


def _compare_architectures(
    request: MergeRequest, template: Checkpoint, members: Mapping[str, Checkpoint]
) -> Iterator[str]:
    """Yield the differences by which a model's tensors are incomparable with the template's."""
    for model in request.inputs:
        other = members.get(model.name)
        if other is None or other.folder == template.folder:
            continue
        pair = ModelPair(template, other)
        if model.part == "text":
            texts = pair.find_trunk_differences()
        else:
            texts = pair.find_differences(modules=request.template is None)
        for text in texts:
            yield f"'{template.folder.name}' and '{model.name}': {text}"


def _find_other_experts(members: Mapping[str, Checkpoint]) -> Iterator[Problem]:
    """Yield a problem for a model from another upcycling, whose experts of one number are not the same.

    An upcycling leaves its fingerprint in config.json, and every training and merge keeps it.
    """
    name_by_origin: dict[object, str] = {}
    for name, model in members.items():
        if (origin := model.config.get(UPCYCLING_KEY)) is not None:
            name_by_origin.setdefault(origin, name)
    if len(name_by_origin) > 1:
        first, other, *_ = name_by_origin.values()
        yield Problem(
            f"'{first}' and '{other}' were upcycled apart, so experts of one number are not the same; merge "
            "models that were trained from one upcycled model"
        )


def _find_weight_warnings(request: MergeRequest) -> Iterator[str]:
    """Yield a warning of weights that no link uses, and of each model whose weight counts several times."""
    if request.strategy and len({str(m.weight.plain()) for m in request.inputs}) > 1:
        link, _ = find_weighing_link(request.strategy, request.inputs)
        if link.weight_role == "unused":
            yield f"'{link.name_in_messages}' uses no weights, so those given change nothing"
    names: dict[tuple[object, ...], list[str]] = {}
    for model in request.inputs:
        if model.folder is not None:
            content = model.fingerprint or (model.folder.resolve(), model.adapter)
            names.setdefault((content, model.part), []).append(f"'{model.name}'")
    for same in names.values():
        if len(same) > 1:
            yield f"{join_some(same)}: one model, whose weight counts {len(same)} times"


def _name_template(template: Checkpoint, members: Mapping[str, Checkpoint]) -> Iterator[str]:
    """Yield a line if the result has the files of a member, which is not the first."""
    names = [name for name, model in members.items() if model.folder == template.folder]
    if names:
        first_name, first = next(iter(members.items()))
        has_fewer = template.modules and not first.modules
        lacks = "modules, and so no pooling" if has_fewer else "head of its own"
        yield f"'{first_name}' has no {lacks}; names, configs and modules come from '{names[0]}'"


def find_template_problems(
    request: MergeRequest, template: Checkpoint, pattern: TensorNames | None
) -> Iterator[Problem]:
    """Yield the problems of the template's files by which the result would be incomplete or unreadable."""
    for text in describe_template_problems(template):
        yield Problem(f"{text}, {TEMPLATE_REMEDY}")
    if request.tokenizer is not None and request.tokenizer.is_dir():
        tokenizer = TokenizerFiles(Checkpoint(request.tokenizer).tokenizer_folder)
        yield from map(Problem, tokenizer.describe_problems())
    trunk = TrunkConfig(template.config)
    count = None if request.layers is None else trunk.layer_count
    if count not in (request.layers, None):
        yield Problem(
            f"'{template.folder.name}' has {count_noun(count or 0, 'layer')}, and the recipe states "
            f"{request.layers}; a merge neither cuts nor stacks layers (`mergekit-yaml` does)"
        )
    if request.template is not None or request.inputs[0].part == "whole":
        return
    first = request.inputs[0]
    wrapped = trunk.stated is not template.config
    if wrapped or (pattern is not None and pattern.left_out):
        yield Problem(
            f"of '{first.name}' only the text trunk is taken, and its config describes more than that; put a "
            "model of text alone first, or name one as 'template'"
        )


def _list_filters(request: MergeRequest) -> Iterator[tuple[str, str]]:
    """Yield each filter of rules, weights and options as (whose it is, filter)."""
    yield from (("a rule", rule.filter) for rule in request.rules if rule.filter != "*")
    for model in request.all_inputs:
        yield from ((f"the weight of '{model.name}'", f) for f in model.weight.filters)
        for options in model.options.values():
            for option, value in options.items():
                yield from ((f"'{model.name}': {option}", f) for f in value.filters)
    for link in (link for chain in request.chains for link in walk_stages(chain)):
        for option, schedule in link.schedules().items():
            yield from ((f"'{link.name_in_messages}': {option}", f) for f in schedule.filters)


def find_filter_problems(plan: MergePlan) -> Iterator[Problem]:
    """Yield a problem for each filter that matches no tensor, and each tensor that filters leave no value.

    A head's name is always allowed.
    """
    owners: dict[str, str] = {}
    for owner, filter_ in _list_filters(plan.request):
        owners.setdefault(filter_, owner)
    if not owners or not plan.tensors:
        return
    names = plan.merged
    known_names = [*names, *plan.dropped, HEAD]
    for filter_, owner in owners.items():
        if not any(filter_ in name for name in known_names):
            yield Problem(
                f"the filter '{filter_}' of {owner} matches no tensor{_suggest_parts(filter_, names)}"
            )
    yield from map(Problem, sorted(set(_describe_missing_values(plan))))


def _suggest_parts(filter_: str, names: Sequence[str]) -> str:
    """Return the end of a message: the part of tensors' names that is nearest to a filter, or some parts."""
    counts = Counter(part for name in names for part in dict.fromkeys(name.split(".")))
    parts = [
        part
        for part, count in counts.most_common()
        if not part.isdigit() and part not in ("weight", "bias") and count < len(names)
    ]
    return suggest(filter_, parts) or f"; parts of their names are {join_some(parts[:6], 6)}"


def _describe_missing_values(plan: MergePlan) -> Iterator[str]:
    """Yield a line for each weight or option whose filters leave a merged tensor without a value."""
    for tensor in plan.tensors:
        if tensor.action != "merge":
            continue
        chain = plan.request.chains[plan.request.find_chain_number(tensor.result.name)]
        schedules = [
            (f"the weight of '{model.name}'", model.weight)
            for model, source in zip(plan.request.inputs, tensor.sources, strict=True)
            if source is not None or model.name in plan.future_models
        ]
        schedules += [
            (f"'{link.name_in_messages}': {option}", schedule)
            for link in walk_stages(chain)
            for option, schedule in link.schedules().items()
        ]
        for owner, schedule in schedules:
            try:
                schedule.at(tensor.result.name, plan.depths.get(tensor.name, 0.0))
            except ValueError as error:
                yield f"{owner}: {error}"


def list_token_warnings(
    request: MergeRequest, template: Checkpoint, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[str]:
    """Yield a line for each difference of the models' tokenizers other than in their tokens."""
    source = template if request.tokenizer is None else Checkpoint(request.tokenizer)
    models: dict[str, list[str]] = {}
    for model in request.inputs:
        other = checkpoints.get(model.name)
        if (
            other is None
            or other.folder == template.folder
            or ModelPair(source, other).same_tokenizer
        ):
            continue
        from emberge.merging.tokens.tokenizer import list_token_notes

        for note in list_token_notes(source, other):
            models.setdefault(note, []).append(f"'{model.name}'")
    for note, names in models.items():
        yield f"'{source.folder.name}' and {join_some(names)}: {note}; the first is kept"
