"""Drawn images and the captions that describe them: a number of shapes of one colour."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from emberge.data import even_place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SIDE = 64  # pixels: 2 by 2 patches of 32, which is 16 merged by two, or any power of two below
NUMBERS = ("one", "two", "three", "four")
_COLOURS: Mapping[str, tuple[int, int, int]] = {
    **{"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)},
    **{"yellow": (235, 205, 40), "purple": (150, 60, 180), "black": (20, 20, 20)},
}
_PAPER = 245
# Membership of points by their distances to the right and down of a shape's middle, and its radius.
# Whole numbers alone, so that all machines draw the same pixels.
_SHAPES: Mapping[str, Callable[[Any, Any, int], Any]] = {
    "circle": lambda x, y, r: x * x + y * y <= r * r,
    "square": lambda x, y, r: (8 * abs(x) <= 7 * r) & (8 * abs(y) <= 7 * r),
    "triangle": lambda x, y, r: (abs(y) <= r) & (2 * abs(x) <= y + r),
    "diamond": lambda x, y, r: abs(x) + abs(y) <= r,
}


@dataclass(frozen=True)
class Draws:
    """Source of whole numbers for one file, alike on every machine: its words decide all of them."""

    words: tuple[str, ...]

    def pick(self, low: int, high: int, *name: object) -> int:
        """Return a number from `low` to `high`, both included; each name has its own."""
        return low + even_place(*self.words, *name) % (high - low + 1)


@dataclass(frozen=True, order=True)
class Drawing:
    """Image's content: one to four shapes of one kind and colour, each in a quarter of its own."""

    number: int
    colour: str
    shape: str

    kind: ClassVar[str] = "image"
    ending: ClassVar[str] = "bmp"

    @classmethod
    def all(cls) -> Iterator[Drawing]:
        """Yield all 96 contents that an image can have."""
        for number, colour, shape in itertools.product(range(1, 5), _COLOURS, _SHAPES):
            yield cls(number, colour, shape)

    @property
    def caption(self) -> str:
        """Description of the image, as "two red circles"."""
        return f"{NUMBERS[self.number - 1]} {self.colour} {self.shape}{'s' * (self.number > 1)}"

    def content(self, draws: Draws) -> bytes:
        """Return a file of the image, a BMP: compressed files differ with the release of zlib."""
        import io

        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self.pixels(draws)).save(buffer, "BMP")
        return buffer.getvalue()

    def pixels(self, draws: Draws) -> NDArray[np.uint8]:
        """Return the image [SIDE, SIDE, 3], each shape of a size and at a place that are drawn."""
        import numpy as np

        half = SIDE // 2
        image = np.full((SIDE, SIDE, 3), _PAPER, np.uint8)
        down, right = np.mgrid[:SIDE, :SIDE]
        quarters = sorted(range(4), key=lambda quarter: draws.pick(0, 2**32, "order", quarter))
        for quarter in quarters[: self.number]:
            radius = draws.pick(half // 4, half // 2 - 2, "radius", quarter)
            x, y = (
                corner * half + draws.pick(radius + 1, half - radius - 2, axis, quarter)
                for axis, corner in (("x", quarter % 2), ("y", quarter // 2))
            )
            image[_SHAPES[self.shape](right - x, down - y, radius)] = _COLOURS[self.colour]
        return image
