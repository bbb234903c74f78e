"""Placement of labels beside the points of a chart, so that nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import LINE, name_lines, name_text

# Most characters of a label's line, and the width of a character.
_WIDTH = 24
LETTER_WIDTH = 6.8
# Distance of words from their point, and distances further away, where a line leads to them.
_NEAR = 9
_FAR = (16, 28, 44, 62, 84, 110)
_LEADER = 20
_DIRECTIONS = (
    *((0, -1, "middle"), (0, 1, "middle"), (1, -1, "start"), (1, 1, "start")),
    *((-1, -1, "end"), (-1, 1, "end"), (1, 0, "start"), (-1, 0, "end")),
)


@dataclass(frozen=True, slots=True)
class Box:
    """Rectangle of words, a marker or an interval, in the units of a chart."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether two rectangles overlap."""
        beside_each_other = self.right <= other.left or other.right <= self.left
        return not (beside_each_other or self.bottom <= other.top or other.bottom <= self.top)

    def is_inside(self, frame: Box) -> bool:
        """Return whether the rectangle lies in a frame."""
        fits_across = frame.left < self.left and self.right < frame.right
        return fits_across and frame.top < self.top and self.bottom < frame.bottom


@dataclass(frozen=True, slots=True)
class PlacedWords:
    """Words at their place: they start, end or have their middle at `x`, by `anchor`; `y` is their middle.

    `start` is the point from which a line leads to the words, if they are not next to it.
    """

    words: str
    x: float
    y: float
    anchor: str
    start: tuple[float, float] | None = None

    @property
    def box(self) -> Box:
        """Rectangle of the words."""
        lines = name_lines(self.words, _WIDTH)
        width, height = max(map(len, lines)) * LETTER_WIDTH, len(lines) * LINE
        left = self.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return Box(left, self.y - height / 2, left + width, self.y + height / 2)

    def draw(self) -> Markup:
        """Return the words, with the line that leads to them."""
        text = name_text(
            self.x, self.y + 4, self.words, width=_WIDTH, style="tick", anchor=self.anchor
        )
        if self.start is None:
            return text
        (x, y), box = self.start, self.box
        end_x, end_y = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
        line = tag("line", class_="leader neutral", x1=x, y1=y, x2=end_x, y2=end_y)
        return tag("g", line, text)


def place_words(
    points: Sequence[tuple[float, float, str]],
    frame: Box,
    occupied: Sequence[Box] = (),
    *,
    further: bool = False,
) -> list[PlacedWords]:
    """Return the words of points (x, y, words) at places in the frame where they overlap nothing.

    Words are right or left of their point, and with `further` also above, below or further away. Words that
    have no place are left out. `occupied` are boxes to avoid, beside those of the points.
    """
    markers = [Box(x - 6, y - 6, x + 6, y + 6) for x, y, _ in points]
    placed: list[PlacedWords] = []
    for i, (x, y, words) in enumerate(points):
        taken = [*markers[:i], *markers[i + 1 :], *occupied, *(other.box for other in placed)]
        for candidate in _list_places(x, y, words, further=further) if words else ():
            if candidate.box.is_inside(frame) and not any(map(candidate.box.meets, taken)):
                placed.append(candidate)
                break
    return placed


def _list_places(x: float, y: float, words: str, *, further: bool) -> Iterator[PlacedWords]:
    """Yield places for the words of a point, the best first."""
    yield PlacedWords(words, x + _NEAR, y, "start")
    yield PlacedWords(words, x - _NEAR, y, "end")
    for distance in _FAR if further else ():
        start = (x, y) if distance > _LEADER else None
        for across, down, anchor in _DIRECTIONS:
            yield PlacedWords(words, x + across * distance, y + down * distance, anchor, start)
