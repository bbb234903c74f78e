"""One walk meets every part of a component, with the path that messages show; one fold makes it plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emberge import ModelRef
from emberge.component_parts import fields_in, parts_of
from emberge.recipes.recipe import references, to_plain


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


def plain(value: Any, leaves: tuple[type, ...] = (ModelRef,)) -> Any:
    def record(item: Any, inner: Callable[[Any], Any]) -> Any:
        return {name: inner(one) for name, one in fields_in(item)}

    def leaf(item: Any) -> Any:
        return item.text if isinstance(item, ModelRef) else item

    return to_plain(value, leaf, record, leaves)


def test_every_reference_is_met_once_for_each_place() -> None:
    assert list(references(COMPONENT)) == [A, B, A]
    assert list(references("no component")) == []


def test_a_part_has_the_path_that_a_recipe_would_write() -> None:
    paths = dict(parts_of(COMPONENT, ModelRef))
    assert paths[""] is COMPONENT
    assert paths["inner.1.model"] is B
    assert paths["inner.1.weight"] == 2.0
    assert paths["tables.x"] is A
    assert not [path for path in paths if path.startswith("inner.0.model.")]


def test_parents_come_before_their_parts() -> None:
    paths = [path for path, _ in parts_of(COMPONENT)]
    assert paths.index("inner") < paths.index("inner.0") < paths.index("inner.0.model")


def test_plain_values_have_lists_for_sets_in_one_order() -> None:
    assert plain(COMPONENT) == {
        "inner": [{"model": "./a", "weight": 1.0}, {"model": "$b", "weight": 2.0}],
        "tables": {"x": "./a"},
        "words": ["y", "z"],
    }
