"""Options of components: limits of numbers, default components, and values by dataset.

The type of a field declares the numbers that it accepts, such as `dropout: Share = 0.0`. The recipes' grammar
refuses other numbers and names their line, commands refuse them when they parse their arguments, and the JSON
schema and the tables of options show the limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Generic, TypeVar

from emberge.errors import suggest

_LARGEST_FLOAT = 3.4028234663852886e38  # of float32
_LARGEST_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The limits of a number, as metadata of a type: `Annotated[int, NumberRange(least=1)]`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def has(self, value: float) -> bool:
        """Return whether a number is within the limits."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def words(self) -> str:
        """Return the limits in words, "" if there are none: "from 0 to 1", "above 0", "of at least 1"."""
        if self.least is not None and self.most is not None:
            return f"from {self.least:,} to {self.most:,}"
        parts = {
            "of at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        return " and ".join(f"{w} {v:,}" for w, v in parts.items() if v is not None)

    def schema(self) -> dict[str, float]:
        """Return the limits by the names of JSON Schema."""
        names = {
            "minimum": self.least,
            "maximum": self.most,
            "exclusiveMinimum": self.above,
            "exclusiveMaximum": self.below,
        }
        return {name: value for name, value in names.items() if value is not None}


AnyNumber = Annotated[float, NumberRange()]
"""Any finite number, of either sign."""
Positive = Annotated[float, NumberRange(above=0)]
"""A number above 0."""
NonNegative = Annotated[float, NumberRange(least=0)]
"""A number from 0 on."""
Share = Annotated[float, NumberRange(least=0, most=1)]
"""A part of a whole, from 0 to 1."""
PositiveShare = Annotated[float, NumberRange(above=0, most=1)]
"""A part of a whole, above 0 and at most 1."""
Cosine = Annotated[float, NumberRange(least=-1, most=1)]
"""A cosine of two vectors, from -1 to 1."""
Count = Annotated[int, NumberRange(least=1)]
"""A whole number from 1 on."""
WholeNumber = Annotated[int, NumberRange(least=0)]
"""A whole number from 0 on."""
TextLength = Annotated[int, NumberRange(least=2, most=2**24)]
"""A number of tokens of a text: at least 2, the first and the last."""


def find_limits(annotation: Any) -> NumberRange | None:
    """Return the limits that a type declares; None if it declares none."""
    metadata = getattr(annotation, "__metadata__", ())
    return next((item for item in metadata if isinstance(item, NumberRange)), None)


def is_sound_number(value: object) -> bool:
    """Return whether a value is a number that is finite in float32, or an integer of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    largest = _LARGEST_INT if isinstance(value, int) else _LARGEST_FLOAT
    return -largest <= value <= largest


def explain_unsound_number(value: object) -> str:
    """Return what a number has to be if no option accepts it as it is; "" for any other value."""
    if is_sound_number(value) or isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "a whole number of at most 63 bits"
    if isinstance(value, float):
        return "a number" if value != value else "a finite number of at most 3.4e38"
    return ""


# Covariant: options are read and never changed, so an option of a narrow kind of component is also
# an option of every wider kind.
T = TypeVar("T", covariant=True)
C = TypeVar("C")


def component(name: str, **options: Any) -> Any:
    """Return a field whose default is the component of this name, with these options.

    Write `backbone: Backbone = component("text_encoder")`. The recipe's grammar builds the component, so that
    no plugin imports another plugin. In Python code, pass the component itself.
    """
    return field(default=None, metadata={"component": {name: options} if options else name})


@dataclass(frozen=True, kw_only=True)
class PerDataset(Generic[T]):
    """An option by dataset: `{default: …, by_task: {sts: …}, by_dataset: {stsb: …}}`; the most specific wins.

    In a recipe, a bare value is the default.
    """

    default: T | None = None
    by_task: dict[str, T] = field(default_factory=dict)
    by_dataset: dict[str, T] = field(default_factory=dict)

    def of(self, dataset: str, task: str) -> T | None:
        """Return the value for a dataset of a task kind; None when there is no default either."""
        if dataset in self.by_dataset:
            return self.by_dataset[dataset]
        return self.by_task.get(task, self.default)

    @property
    def values(self) -> tuple[T | None, ...]:
        """All values, the default first."""
        return (self.default, *self.by_task.values(), *self.by_dataset.values())

    def find_unknown(self, label: str, datasets: Sequence[str]) -> Iterator[str]:
        """Yield a problem of the option `label` for each name in `by_dataset` that is no dataset."""
        for name in self.by_dataset:
            if name not in datasets:
                hint = suggest(name, datasets) or f"; there are {', '.join(datasets)}"
                yield f"{label}: by_dataset names '{name}', which is no dataset of this training{hint}"

    @staticmethod
    def find_all_unknown(component: object, datasets: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (option, problem) for each unknown dataset in a component's options by dataset."""
        for option, value in vars(component).items():
            if isinstance(value, PerDataset):
                yield from ((option, problem) for problem in value.find_unknown(option, datasets))

    def __repr__(self) -> str:
        # As in a recipe: artifacts and cards show samplers so.
        options = {"default": self.default, "by_task": self.by_task, "by_dataset": self.by_dataset}
        stated = {name: value for name, value in options.items() if value not in (None, {})}
        return repr(self.default) if stated.keys() <= {"default"} else repr(stated)

    @staticmethod
    def narrow(options: C, names: Collection[str]) -> C:
        """Return a component's options with only these datasets' `by_dataset` entries."""
        changes: dict[str, Any] = {}
        for option in fields(options):  # type: ignore[arg-type]  # a component, which is a dataclass
            value = getattr(options, option.name)
            if isinstance(value, PerDataset):
                entries = {name: one for name, one in value.by_dataset.items() if name in names}
                changes[option.name] = replace(value, by_dataset=entries)
        return replace(options, **changes)  # type: ignore[type-var]
