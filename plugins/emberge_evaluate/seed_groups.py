"""Arms of a comparison: groups of models that differ only in the seed of their training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from emberge import ModelRef

SEED = "seed"


@dataclass(frozen=True)
class Scored:
    """Column of an evaluation: a model, the size of its embeddings, and the seed of the evaluation.

    `model` is the model's name in tables, `called` the name that the recipe gives it. `size` and `drawn` (the
    seed) are None unless there are several.
    """

    model: str
    reference: ModelRef
    called: str | None = None
    size: int | None = None
    drawn: int | None = None

    @property
    def name(self) -> str:
        """Name of the column: `model`, `model@256`, `model#1`."""
        return f"{_add_size(self.model, self.size)}{'' if self.drawn is None else f'#{self.drawn}'}"

    @property
    def step(self) -> str | None:
        """Id of the step that made the model; None without one."""
        return self.reference.step if self.reference.part is None else None

    @property
    def training_seed(self) -> str:
        """Seed of the `foreach` of the model's step, as `seed=1`; "" without one."""
        seed = read_variables(self.step or "").get(SEED)
        return f"{SEED}={seed}" if seed else ""

    @property
    def arm(self) -> str:
        """Name of the model's arm: the model's name without the seed."""
        if self.step is None or not self.training_seed:
            return _add_size(self.model, self.size)
        return _add_size(self.called or _remove_seed(self.step), self.size)

    @property
    def place(self) -> str:
        """Values that distinguish the column within its arm."""
        values = [self.training_seed, "" if self.drawn is None else f"#{self.drawn}"]
        return ",".join(filter(None, values))


@dataclass(frozen=True)
class Arm:
    """Models that differ only in values such as `seed=1`; an arm of one model has the model's name.

    `grouped` are the models of each independent draw, if these are not single models.
    """

    name: str
    models: Mapping[str, str]
    grouped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the arm's models."""
        return tuple(self.models.values())

    @property
    def draws(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the models of each independent draw, by the values that distinguish it."""
        return self.grouped or {values: (name,) for values, name in self.models.items()}


def read_variables(step: str) -> dict[str, str]:
    """Return the variables in a step's id: ratio and seed from `members.ratio=0.2,seed=1`."""
    _, _, suffix = step.partition(".")
    pairs = (pair.partition("=") for pair in suffix.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _remove_seed(step: str) -> str:
    """Return the step's id without the seed."""
    group = step.partition(".")[0]
    values = [f"{name}={value}" for name, value in read_variables(step).items() if name != SEED]
    return f"{group}.{','.join(values)}" if values else group


def _add_size(name: str, size: int | None) -> str:
    return name if size is None else f"{name}@{size}"


def find_arms(scored_models: Iterable[Scored]) -> tuple[Arm, ...]:
    """Return the arms of all models, in the order of their first models."""
    by_arm: dict[str, list[Scored]] = {}
    for scored in scored_models:
        by_arm.setdefault(scored.arm, []).append(scored)
    taken_names = {scored.name for several in by_arm.values() for scored in several}
    return tuple(_build_arm(name, several, taken_names) for name, several in by_arm.items())


def _build_arm(name: str, several: Sequence[Scored], taken_names: set[str]) -> Arm:
    """Return the arm of several models, of another name if a model has its name.

    If trainings have several seeds, the seeds of an evaluation are not independent draws: each model counts
    once, with its mean over the evaluation's seeds.
    """
    if len(several) == 1:
        return Arm(several[0].name, {several[0].place or "1": several[0].name})
    models: dict[str, str] = {}
    grouped: dict[str, list[str]] = {}
    for number, scored in enumerate(several, 1):
        values = scored.place or str(number)
        models[values if values not in models else f"{values} ({number})"] = scored.name
        grouped.setdefault(scored.training_seed or scored.model, []).append(scored.name)
    is_drawn_twice = len(grouped) > 1 and any(scored.drawn is not None for scored in several)
    free_name = f"{name} (all)" if name in taken_names else name
    draws = {values: tuple(names) for values, names in grouped.items()}
    return Arm(free_name, models, draws if is_drawn_twice else {})
