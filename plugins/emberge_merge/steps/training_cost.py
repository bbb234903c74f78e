"""The cost of training a merge's members, against one training on all rows: before a run, and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emberge import Artifact, Expected

if TYPE_CHECKING:
    from emberge import Model, ModelRef, Preflight

# What a training says of its work, which is added up.
_WORK = ("examples", "seconds", "cpu_seconds")

Trained = Mapping[str, Mapping[str, Any]]


def training_cost(trainings: Trained) -> dict[str, Any]:
    """Return the cost TC = Σₘ |D⁽ᵐ⁾| / |D| as values of JSON; empty if it is unknown (arXiv:2602.05787).

    `times` is the cost, and `members` has the terms of its sum. All data are the union of the trainings'
    datasets by name; if trainings give different sizes for a dataset, the largest counts.
    """
    facts = trainings.values()
    if not facts or not all(training.get("datasets") for training in facts):
        return {}
    of = _count_all_rows(trainings)
    rows = {
        name: sum(int(used["rows"]) for used in training["datasets"].values())
        for name, training in trainings.items()
    }
    work = {
        key: round(sum(training[key] for training in facts), 3)
        for key in _WORK
        if all(training.get(key) is not None for training in facts)
    }
    return {
        "times": round(sum(rows.values()) / of, 6),
        "members": {name: round(count / of, 6) for name, count in rows.items()},
        **{"rows": sum(rows.values()), "of": of},
        **work,
    }


def _count_all_rows(trainings: Trained) -> int:
    sizes: dict[str, int] = {}
    for training in trainings.values():
        for name, used in training["datasets"].items():
            sizes[name] = max(sizes.get(name, 0), int(used["of"]))
    return sum(sizes.values())


def _find_trainings(models: Mapping[str, Artifact | None]) -> dict[str, Mapping[str, Any]]:
    """Return the trainings behind the models of steps; empty if the trainings of one model are unknown."""
    trainings = [_list_trainings(step, artifact) for step, artifact in models.items()]
    if not all(trainings):
        return {}
    return {name: training for each in trainings for name, training in each.items()}


def _list_trainings(name: str, artifact: Artifact | None) -> dict[str, Mapping[str, Any]]:
    """Return the trainings behind the model of step `name`: the step, or those of a merge's models.

    Not listed are trainings that a member itself started from, and models from outside the run.
    """
    details = artifact.details if artifact is not None else {}
    if isinstance(details.get("trained"), Mapping):
        return dict(details["trained"])
    if "datasets" not in details:
        return {}
    datasets = {
        data: {"rows": used["rows"], "of": used["of"]} for data, used in details["datasets"].items()
    }
    return {name: {"datasets": datasets, **{k: details[k] for k in _WORK if k in details}}}


def describe_cost(
    models: Sequence[ModelRef], context: Preflight, others: Iterable[ModelRef] = ()
) -> None:
    """Note the cost of a merge's members for the terminal, and announce the merge to later steps.

    `others` are further parents, such as a base.
    """
    members = {r.step: context.expected(r) for r in models if r.step is not None}
    trainings = _find_trainings({s: m.artifact if m else None for s, m in members.items()})
    parents = tuple(dict.fromkeys(reference.text for reference in (*models, *others)))
    details = {"trained": trainings} if trainings else {}
    context.expect(Expected(Artifact(kind="model", parents=parents, details=details)))
    cost = training_cost(trainings)
    if not cost:
        return
    rows = f"{cost['rows']:,} of {cost['of']:,} rows"
    lines = [f"{cost['times']:.3g} × one run on all rows ({rows})"]
    if len(cost["members"]) > 1:
        lines.append(", ".join(f"{name} {share:.3g}" for name, share in cost["members"].items()))
    context.note("training cost", lines)


def compute_cost_details(found: Sequence[tuple[ModelRef, Model]]) -> dict[str, Any]:
    """Return the cost of the trainings behind a merge's models, as details of its artifact."""
    trainings = _find_trainings(
        {reference.step: m.artifact for reference, m in found if reference.step is not None}
    )
    cost = training_cost(trainings)
    return {"training_cost": cost, "trained": trainings} if cost else {}
