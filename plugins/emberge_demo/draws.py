"""Numbers that are drawn alike on every machine and by every release of Python."""

from __future__ import annotations

from dataclasses import dataclass

from emberge_demo.package_files import even_place


@dataclass(frozen=True)
class Draws:
    """Source of whole numbers for one file: the words it is built of decide all of them."""

    words: tuple[str, ...]

    def pick(self, low: int, high: int, *name: object) -> int:
        """Return a number from `low` to `high`, both included; each name has its own."""
        return low + even_place(*self.words, *map(str, name)) % (high - low + 1)
