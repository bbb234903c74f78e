"""How a model looks in every chart of a page: a colour and a shape, so that colour is never the only sign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from emberge_report.page.markup import Markup, tag

__all__ = ["NEUTRAL", "Look", "looks", "marker", "short", "text"]

# The style sheet has as many colours.
COLOURS = 8
_SHAPES = ("circle", "square", "diamond", "up", "down", "cross", "hexagon")


@dataclass(frozen=True, slots=True)
class Look:
    """A style class of the page and a shape of marker."""

    style: str
    shape: str


NEUTRAL = Look("neutral", "circle")
"""What a model has that is compared with but was not made here."""


def looks(names: Iterable[str]) -> Mapping[str, Look]:
    """A look for each name, in order; colours and shapes have different periods, so pairs last longer."""
    return {
        name: Look(f"c{i % COLOURS}", _SHAPES[i % len(_SHAPES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def marker(x: float, y: float, look: Look, size: float = 4.5) -> Markup:
    """The shape, centred on a point; `size` is about its radius."""
    style = f"mark {look.style}"
    if look.shape == "circle":
        return tag("circle", class_=style, cx=x, cy=y, r=size)
    if look.shape == "square":
        side = size * 0.88
        return tag("rect", class_=style, x=x - side, y=y - side, width=2 * side, height=2 * side)
    points = " ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in _POLYGONS[look.shape])
    return tag("polygon", class_=style, points=points)


_POLYGONS: dict[str, tuple[tuple[float, float], ...]] = {
    "diamond": ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
    "up": ((0, -1.15), (1.15, 0.9), (-1.15, 0.9)),
    "down": ((0, 1.15), (1.15, -0.9), (-1.15, -0.9)),
    "hexagon": ((0.6, -1), (1.15, 0), (0.6, 1), (-0.6, 1), (-1.15, 0), (-0.6, -1)),
    "cross": (
        *((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4)),
        *((0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4)),
    ),
}


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> Markup:
    """Words at a baseline; `anchor` is start, middle or end."""
    placed = None if anchor == "start" else anchor
    return tag("text", words, class_=style or None, x=x, y=y, text_anchor=placed)


def short(name: str, room: int) -> str:
    """A name cut in its middle to `room` characters: ends are what tell names apart."""
    if len(name) <= room:
        return name
    head = (room - 1) // 2
    return f"{name[:head]}…{name[len(name) - (room - 1 - head) :]}"
