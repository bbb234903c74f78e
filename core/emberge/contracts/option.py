"""Options whose default is a component, that differ between datasets, or that need another option."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["PerDataset", "Requires", "component", "default_component"]

# Options are read and never changed, so one for a kind of component is one for a wider kind too.
T = TypeVar("T", covariant=True)


def component(name: str, **options: Any) -> Any:
    """Return a field whose default is the component of this name, with these options.

    Written `backbone: Backbone = component("text_encoder")`. The recipe's grammar builds it, so that no
    plugin imports another. In Python, pass the component.
    """
    return field(default=None, metadata={"component": {name: options} if options else name})


def default_component(option: dataclasses.Field[Any]) -> str | Mapping[str, Any] | None:
    """Return the default that `component` gave a field, as in a recipe: a name or `{name: options}`."""
    return option.metadata.get("component")


@dataclass(frozen=True, slots=True)
class Requires:
    """Mark of an option that has an effect with another alone: `Annotated[int, Requires("jaccard")]`.

    A recipe that gives it without the other is refused. The other must be anything but nothing, empty or
    false; with `value` it must be just that. Of several `others` one is enough.
    """

    others: tuple[str, ...]
    value: object = None

    def __init__(self, *others: str, value: object = None) -> None:
        object.__setattr__(self, "others", others)
        object.__setattr__(self, "value", value)

    def lacking(self, options: Mapping[str, Any]) -> str:
        """Return what is missing among the values of all options, in words, "" if nothing is."""
        if any(self._is_met(options.get(other)) for other in self.others):
            return ""
        equals = "" if self.value is None else f": {self.value}"
        return " or ".join(f"`{other}{equals}`" for other in self.others)

    def _is_met(self, value: Any) -> bool:
        return value == self.value if self.value is not None else value not in (None, False, (), {})


@dataclass(frozen=True, kw_only=True)
class PerDataset(Generic[T]):
    """An option that may differ: `{default: …, by_task: {sts: …}, by_dataset: {stsb: …}}`; the nearer wins.

    In a recipe a bare value is the default.
    """

    default: T | None = None
    by_task: dict[str, T] = field(default_factory=dict)
    by_dataset: dict[str, T] = field(default_factory=dict)

    def of(self, dataset: str, task: str) -> T | None:
        """Return the value for a dataset of a task kind; None when there is no default either."""
        if dataset in self.by_dataset:
            return self.by_dataset[dataset]
        return self.by_task.get(task, self.default)

    def __repr__(self) -> str:
        # As in a recipe: artifacts and cards show samplers so.
        options = {"default": self.default, "by_task": self.by_task, "by_dataset": self.by_dataset}
        given = {name: value for name, value in options.items() if value not in (None, {})}
        return repr(self.default) if given.keys() <= {"default"} else repr(given)
