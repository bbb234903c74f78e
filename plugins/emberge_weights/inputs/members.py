"""Vectors of a member, before they are brought to length one, and the prompts of its texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from emberge import Backbone

from emberge_weights.inputs.weight_sets import WeightSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class VectorRows(Protocol):
    """Vectors on disk or in memory: float32 [n, d] by their places."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Any) -> NDArray[np.float32]: ...


@dataclass(frozen=True, eq=False)
class SideVectors:
    """Vectors of a set's queries and documents by one member."""

    queries: VectorRows
    documents: VectorRows


@dataclass(frozen=True)
class Prompting:
    """Prompts as an evaluation puts them: a `template` before queries, or the model's `own`."""

    template: str | None
    own: Mapping[str, str]

    def of(self, one: WeightSet, side: str) -> str:
        """Return the prompt of a side of a set; sides that are alike have the queries'."""
        if self.template is not None:
            if side == "document" and not one.alike:
                return ""
            text = self.template
            for name, value in one.asked.items():
                text = text.replace(f"{{{name}}}", value)
            return text
        names = [side, "passage"] if side == "document" else [side]
        return next(
            (self.own[name] for name in ([] if one.alike else names) if name in self.own), ""
        )


def before_length_one(backbone: Backbone) -> Backbone:
    """Return the backbone without the scaling to length one at its end.

    A merge averages what comes before it, so that members count by the lengths of their embeddings.
    """
    if any(option.name == "normalize" for option in dataclasses.fields(backbone)):
        return dataclasses.replace(backbone, **{"normalize": False})
    return backbone
