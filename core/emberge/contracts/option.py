"""How a component's field says what stands behind it in a recipe, beyond its type."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["PerDataset", "component", "later"]

T = TypeVar("T")


def component(name: str) -> Any:
    """Name the component that is a field's default.

    Written `backbone: Backbone = component("text_encoder")`. The recipe's grammar builds it, so that no
    plugin imports another. In Python give it yourself.
    """
    return field(default=None, metadata={"component": name})


def default_component(option: dataclasses.Field[Any]) -> str | None:
    """The name that `component` put behind a field."""
    return option.metadata.get("component")


def later(default: Any) -> Any:
    """A field that came later than its component: at this default it is no part of a fingerprint.

    So nothing that was made before it came is made again. Written `negatives: Negatives = later("auto")`.
    """
    return field(default=default, metadata={"later": True})


def came_later(option: dataclasses.Field[Any]) -> bool:
    """Whether `later` made the field."""
    return "later" in option.metadata


@dataclass(frozen=True, kw_only=True)
class PerDataset(Generic[T]):
    """An option that may differ: `{default: …, by_task: {sts: …}, by_dataset: {stsb: …}}`; the nearer wins.

    In a recipe a bare value is the default.
    """

    default: T | None = None
    by_task: dict[str, T] = field(default_factory=dict)
    by_dataset: dict[str, T] = field(default_factory=dict)

    def of(self, dataset: str, task: str) -> T | None:
        """The value for a dataset of a task kind, None when nothing covers it."""
        if dataset in self.by_dataset:
            return self.by_dataset[dataset]
        return self.by_task.get(task, self.default)

    def __repr__(self) -> str:
        # As a recipe says it: artifacts and cards show samplers so.
        options = {"default": self.default, "by_task": self.by_task, "by_dataset": self.by_dataset}
        told = {name: value for name, value in options.items() if value not in (None, {})}
        return repr(self.default) if told.keys() <= {"default"} else repr(told)
