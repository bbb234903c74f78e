"""Arms of a comparison: groups of models that differ only in the seed of their training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emberge import ModelRef

SEED = "seed"


@dataclass(frozen=True)
class Scored:
    """Model among those scored: its name in tables, its reference, and the recipe's name for it.

    `called` is the name that the recipe gives the model. `size` is the size of embeddings if several are
    scored; the names of the model and of its arm then end with it. `drawn` is the seed of the evaluation if
    there are several; the model's name then ends with it.
    """

    name: str
    reference: ModelRef
    called: str | None = None
    size: int | None = None
    drawn: int | None = None

    @property
    def step(self) -> str | None:
        """Id of the step that made the model; None without one."""
        return self.reference.step if self.reference.part is None else None

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the `foreach` of the model's step."""
        return read_variables(self.step or "")

    @property
    def arm(self) -> str:
        """Name of the model's arm: the model's name without the seed."""
        if self.step is None or SEED not in self.variables:
            return self.model
        name = self.called or _remove_variables(str(self.step), {SEED})
        return name if self.size is None else f"{name}@{self.size}"

    @property
    def model(self) -> str:
        """Name of the model without the seed of the evaluation."""
        return self.name if self.drawn is None else self.name.removesuffix(f"#{self.drawn}")

    @property
    def place(self) -> str:
        """Values of variables that distinguish the model within its arm."""
        seed = self.variables.get(SEED)
        values = [f"{SEED}={seed}"] if seed else []
        return ",".join(values if self.drawn is None else [*values, f"#{self.drawn}"])


@dataclass(frozen=True)
class Arm:
    """Models that differ only in values such as `seed=1`; an arm of one model has the model's name.

    If each seed of an evaluation has its own column, `sources` maps the column's name to its model.
    """

    name: str
    models: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the arm's models."""
        return tuple(self.models.values())

    @property
    def draws(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the models of each independent draw, by the values that distinguish it.

        If trainings have several seeds, the seeds of an evaluation are not independent draws: each model
        counts once, with its mean over the evaluation's seeds.
        """
        if len(set(self.sources.values())) < 2:
            return {seed_text: (name,) for seed_text, name in self.models.items()}
        names_by_source: dict[str, list[str]] = {}
        for name in self.members:
            names_by_source.setdefault(self.sources[name], []).append(name)
        places = {name: seed_text for seed_text, name in self.models.items()}
        return {
            places[names[0]].rpartition(",#")[0] or source: tuple(names)
            for source, names in names_by_source.items()
        }


def read_variables(step: str) -> dict[str, str]:
    """Return the variables in a step's id: ratio and seed from `members.ratio=0.2,seed=1`."""
    _, _, suffix = step.partition(".")
    pairs = (pair.partition("=") for pair in suffix.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _remove_variables(step: str, names: set[str]) -> str:
    """Return the step's id without the named variables."""
    group = step.partition(".")[0]
    kept_variables = [f"{n}={value}" for n, value in read_variables(step).items() if n not in names]
    return f"{group}.{','.join(kept_variables)}" if kept_variables else group


def find_arms(scored_models: Iterable[Scored]) -> tuple[Arm, ...]:
    """Return the arms of all models, in the order of their first models."""
    models = list(scored_models)
    members_by_arm: dict[str, dict[str, str]] = {}
    for model in models:
        members = members_by_arm.setdefault(model.arm, {})
        values = model.place or f"{len(members) + 1}"
        members[values if values not in members else f"{values} ({len(members) + 1})"] = model.name
    sources = {model.name: model.model for model in models if model.drawn is not None}
    taken_names = {name for members in members_by_arm.values() for name in members.values()}
    return tuple(
        Arm(
            next(iter(members.values())) if len(members) == 1 else _free_name(name, taken_names),
            members,
            {name: source for name, source in sources.items() if name in members.values()},
        )
        for name, members in members_by_arm.items()
    )


def _free_name(name: str, taken: set[str]) -> str:
    """Return the arm's name, changed if a model has the same name."""
    return f"{name} (all)" if name in taken else name
