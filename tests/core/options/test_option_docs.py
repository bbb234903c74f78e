"""Where the documentation of an option is found."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Sampler
from emberge.options.option_docs import find_option_doc


@dataclass(frozen=True, kw_only=True)
class Parent(Sampler):
    """Do nothing. `size` is how much; `shape` how it looks.

    In the end, `colour` may be red. `size` is named twice.
    """

    size: int = 1
    shape: str = "round"
    colour: str = "red"
    weight: float = 1.0
    """Right below,
    over two lines."""
    silent: int = 0


@dataclass(frozen=True, kw_only=True)
class Child(Parent):
    """Do more than `size` and `weight` say, in any `colour`. `shape` is square here."""


def test_an_option_is_documented_below_its_field_in_the_docstring_or_by_its_parent() -> None:
    assert find_option_doc(Parent, "weight") == "Right below, over two lines."
    assert find_option_doc(Parent, "size") == "`size` is how much."
    assert find_option_doc(Parent, "shape") == "`shape` how it looks."
    assert find_option_doc(Parent, "colour") == "In the end, `colour` may be red."
    assert find_option_doc(Parent, "silent") == ""
    assert find_option_doc(Child, "shape") == "`shape` is square here."
    assert find_option_doc(Child, "weight") == "Right below, over two lines."
    assert find_option_doc(Child, "size") == "`size` is how much."
