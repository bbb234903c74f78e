"""Orders of batches from several sequences: shuffled, one after another, or in turn."""

from __future__ import annotations

from collections.abc import Sequence

from emberge.contracts import Batch, Batches, Negatives
from emberge.training.plan.permutation import Permutation


class _Several(Batches):
    """Batches of several sequences, each once."""

    def __init__(self, parts: Sequence[Batches]) -> None:
        import numpy as np

        self.parts = tuple(part for part in parts if len(part))
        self._ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.parts else 0

    def __getitem__(self, place: int) -> Batch:
        if not 0 <= place < len(self):
            raise IndexError(f"batch {place} of {len(self)}")
        part, number = self._find(place)
        return self.parts[part][number]

    def _find(self, place: int) -> tuple[int, int]:
        """Return the part that gives batch `place`, and the batch's number in it."""
        part = int(self._ends.searchsorted(place, side="right"))
        return part, place - (int(self._ends[part - 1]) if part else 0)

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        return frozenset[tuple[str, Negatives]]().union(*(part.kinds() for part in self.parts))


class InOrder(_Several):
    """Batches of one part after those of another."""

    def segments(self) -> Sequence[int]:
        return (0, *self._ends[:-1].tolist())


class Shuffled(_Several):
    """Batches of all parts in a random order."""

    def __init__(self, parts: Sequence[Batches], seed: int) -> None:
        super().__init__(parts)
        self._order = Permutation(len(self), seed)

    def _find(self, place: int) -> tuple[int, int]:
        return super()._find(self._order[place])


class InTurn(_Several):
    """Batches of each part in turn; a part that has no more is passed over."""

    def __init__(self, parts: Sequence[Batches]) -> None:
        import numpy as np

        super().__init__(parts)
        self._lengths = np.array([len(part) for part in self.parts], dtype=np.int64)
        # A stretch of rounds between two lengths has the same parts: its first round, parts, first place.
        ends = np.unique(self._lengths)
        self._rounds = np.concatenate([np.zeros(1, np.int64), ends])
        self._active = np.array([(self._lengths > r).sum() for r in self._rounds], dtype=np.int64)
        widths = np.diff(self._rounds) * self._active[:-1]
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])

    def _find(self, place: int) -> tuple[int, int]:
        stretch = int(self._starts.searchsorted(place, side="right")) - 1
        rounds, which = divmod(place - int(self._starts[stretch]), int(self._active[stretch]))
        number = int(self._rounds[stretch])
        return int((self._lengths > number).nonzero()[0][which]), number + rounds
