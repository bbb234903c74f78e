"""What a walk over a component yields, and how a component becomes plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emberge import ModelRef
from emberge.component_parts import convert_parts, walk_fields, walk_parts


@dataclass(frozen=True)
class Inner:
    model: ModelRef
    weight: float = 1.0


@dataclass(frozen=True)
class Outer:
    inner: tuple[Inner, ...]
    tables: dict[str, ModelRef] = field(default_factory=dict)
    words: frozenset[str] = frozenset()


A, B = ModelRef("./a"), ModelRef("$b")


COMPONENT = Outer((Inner(A), Inner(B, 2.0)), {"x": A}, frozenset({"z", "y"}))


def plain(value: Any) -> Any:
    def record(item: Any, inner: Callable[[Any], Any]) -> Any:
        return {name: inner(one) for name, one in walk_fields(item)}

    def leaf(item: Any) -> Any:
        return item.text if isinstance(item, ModelRef) else item

    return convert_parts(value, leaf, record, (ModelRef,))


def test_every_part_of_a_component_is_yielded_once_with_its_path() -> None:
    paths = dict(walk_parts(COMPONENT, ModelRef))
    assert paths[""] is COMPONENT
    assert paths["inner.1.model"] is B
    assert paths["inner.1.weight"] == 2.0
    assert paths["tables.x"] is A
    assert not [path for path in paths if path.startswith("inner.0.model.")]
    paths = [path for path, _ in walk_parts(COMPONENT)]
    assert paths.index("inner") < paths.index("inner.0") < paths.index("inner.0.model")
    assert plain(COMPONENT) == {
        "inner": [{"model": "./a", "weight": 1.0}, {"model": "$b", "weight": 2.0}],
        "tables": {"x": "./a"},
        "words": ["y", "z"],
    }
