"""The cost of training a merge's members, against one training on all rows: before a run, and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import Artifact, Expected
from emberge.results import rows_seen

if TYPE_CHECKING:
    from emberge import Model, ModelRef, Preflight, Rows


# Rows up to which the overlap of members' bags is counted, with one byte a row.
LAID_OVER = 100_000_000

Trained = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class MembersCost:
    """Training cost TC = Σₘ |D⁽ᵐ⁾| / |D|: the members' rows, summed, per row of all data (arXiv:2602.05787).

    `members` are the terms of the sum by training. `rows` and `of` are None if data could not be counted.
    `examples` are the rows trained on, over all epochs; `seconds` and `cpu_seconds` are the time that the
    training took. All three are None before the run.
    """

    members: Mapping[str, float]
    rows: int | None = None
    of: int | None = None
    examples: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None

    @property
    def times(self) -> float:
        """The cost, in units of one training on all rows."""
        return (
            self.rows / self.of if self.rows is not None and self.of else sum(self.members.values())
        )

    @property
    def line(self) -> str:
        """The cost in a few words."""
        rows = f" ({self.rows:,} of {self.of:,} rows)" if self.rows is not None else ""
        return f"{self.times:.3g} × one run on all rows{rows}"

    def plain(self) -> dict[str, Any]:
        """Return the cost as values of JSON, for an artifact."""
        facts = {
            "times": round(self.times, 6),
            "rows": self.rows,
            "of": self.of,
            "members": {name: round(share, 6) for name, share in self.members.items()},
            "examples": self.examples,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True)
class Overlap:
    """Counts of the rows that at least one member saw, and that several members saw, out of `of` rows."""

    seen: int
    several: int
    of: int

    @property
    def line(self) -> str:
        """The overlap of members' bags in words."""
        seen_text = "every row" if self.seen == self.of else f"{self.seen:,} of {self.of:,} rows"
        several_text = f"{self.several:,} in several" if self.several else "none in several"
        return f"together the members see {seen_text}, {several_text}"


def training_cost(trainings: Trained) -> MembersCost | None:
    """Return the cost of trainings from their artifacts; None without trainings or known sizes.

    All data are the union of the trainings' datasets by name. If trainings give different sizes for a
    dataset, the largest counts.
    """
    shares = {name: training.get("share") for name, training in trainings.items()}
    if not trainings or any(
        not training.get("datasets") and shares[n] is None for n, training in trainings.items()
    ):
        return None
    if any(share is not None for share in shares.values()):
        known_shares = {name: float(share) for name, share in shares.items() if share is not None}
        return MembersCost(known_shares) if len(known_shares) == len(trainings) else None
    rows = {
        n: sum(int(u["rows"]) for u in training["datasets"].values())
        for n, training in trainings.items()
    }
    of = sum(_sum_dataset_sizes(trainings).values())
    return MembersCost(
        {name: count / of for name, count in rows.items()},
        sum(rows.values()),
        of,
        _add_up(trainings, "examples"),
        _add_up(trainings, "seconds"),
        _add_up(trainings, "cpu_seconds"),
    )


def _add_up(trainings: Trained, key: str) -> Any:
    values = [one.get(key) for one in trainings.values()]
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values):
        return None
    total = sum(known_values)
    return round(total, 3) if isinstance(total, float) else total


def _find_trainings(models: Mapping[str, Artifact | None]) -> dict[str, Mapping[str, Any]]:
    """Return the trainings behind the models of steps; empty if the trainings of one model are unknown."""
    trainings = [_list_trainings(step, artifact) for step, artifact in models.items()]
    return (
        {name: training for each in trainings for name, training in each.items()}
        if all(trainings)
        else {}
    )


def _list_trainings(name: str, artifact: Artifact | None) -> dict[str, Mapping[str, Any]]:
    """Return the trainings behind the model of step `name`: the step, or those of a merge's models.

    Not listed are trainings that a member itself started from, and models from outside the run.
    """
    details = artifact.details if artifact is not None else {}
    if isinstance(details.get("trained"), Mapping):
        return dict(details["trained"])
    if "datasets" not in details:
        return {}
    keys = ("examples", "seconds", "cpu_seconds", "share")
    datasets = {
        data: {"rows": used_rows["rows"], "of": used_rows["of"]}
        for data, used_rows in details["datasets"].items()
    }
    return {name: {"datasets": datasets, **{k: details[k] for k in keys if k in details}}}


def overlap(members: Sequence[Mapping[str, Rows]], sizes: Mapping[str, int]) -> Overlap | None:
    """Count the rows that several members saw; None for one member, or for too many rows."""
    import numpy as np

    if len(members) < 2 or sum(sizes.values()) > LAID_OVER:
        return None
    seen = several = 0
    for name, size in sizes.items():
        count = np.zeros(size, dtype=np.uint8)
        for rows in (
            np.unique(np.asarray(member.get(name, ()), dtype=np.int64)) for member in members
        ):
            count[rows] += count[rows] < 2
        seen += int((count > 0).sum())
        several += int((count > 1).sum())
    return Overlap(seen, several, sum(sizes.values()))


def _sum_dataset_sizes(trainings: Trained) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for training in trainings.values():
        for name, used_rows in training["datasets"].items():
            sizes[name] = max(sizes.get(name, 0), int(used_rows["of"]))
    return sizes


# ── before a run ────────────────────────────────────────────────────────────────────────────────


def describe_cost(
    models: Sequence[ModelRef], context: Preflight, others: Iterable[ModelRef] = ()
) -> None:
    """Note the cost of a merge's members for the terminal, and announce the merge to later steps.

    `others` are further parents: a base, models of slices.
    """
    artifacts = {r.step: context.expected(r) for r in models if r.step is not None}
    members = {step: member for step, member in artifacts.items() if member is not None}
    is_complete = len(members) == len(artifacts)
    trainings = (
        _find_trainings({step: member.artifact for step, member in members.items()})
        if is_complete
        else {}
    )
    parents = tuple(dict.fromkeys(reference.text for reference in (*models, *others)))
    details = {"trained": trainings} if trainings else {}
    context.expect(Expected(Artifact(kind="model", parents=parents, details=details)))
    cost = training_cost(trainings)
    if cost is None:
        return
    lines = [cost.line]
    if len(cost.members) > 1:
        lines.append(", ".join(f"{name} {share:.3g}" for name, share in cost.members.items()))
    if cost.rows is not None and members.keys() == trainings.keys():
        overlap_of_members = overlap(
            [member.rows for member in members.values()], _sum_dataset_sizes(trainings)
        )
        lines += [overlap_of_members.line] if overlap_of_members is not None else []
    context.note("training cost", lines)


# ── after it ────────────────────────────────────────────────────────────────────────────────────


def cost_details(found: Sequence[tuple[ModelRef, Model]]) -> dict[str, Any]:
    """Return the cost and overlap of the trainings behind a merge's models, as details of its artifact."""
    model_by_step = {
        reference.step: model for reference, model in found if reference.step is not None
    }
    trainings = _find_trainings({step: model.artifact for step, model in model_by_step.items()})
    cost = training_cost(trainings)
    if cost is None:
        return {}
    facts = cost.plain()
    if model_by_step.keys() == trainings.keys():
        overlap_of_members = overlap(
            [rows_seen(m.adapter or m.folder) for m in model_by_step.values()],
            _sum_dataset_sizes(trainings),
        )
        if overlap_of_members is not None:
            facts |= {
                "rows_seen": overlap_of_members.seen,
                "rows_in_several": overlap_of_members.several,
            }
    return {"training_cost": facts, "trained": trainings}
