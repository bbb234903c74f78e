"""MinHash: texts whose shingles overlap get equal keys, so that few pairs of texts need be compared.

Own code, as both libraries were slower in a measurement over 6,000 texts of 416 characters (128 hashes of
shingles of 5): 0.23 s here, 0.48 s with rensa 0.5, 7.6 s with datasketch 2.0. They also keep an index of
Python objects in memory, where keys here are arrays that may be on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import random_bits, stable_seed

from emberge_data.steps.near.shingles import character_hashes, mixed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


HASHES = 128
# The share of pairs just at the threshold that may get no key in common; of more alike pairs far fewer.
MISSED = 0.01


@dataclass(frozen=True)
class MinHash:
    """Signatures of texts and the keys of their bands (Broder, 1997; Indyk and Motwani, 1998).

    Two texts agree in a number of a signature with a probability that is the Jaccard similarity of their
    shingles of `size` characters. A band is `rows` of the `HASHES` numbers, and its key a hash of them: the
    most rows with which a pair of similarity `threshold` shares a key with a probability of at least
    1 - MISSED. Whether candidates are as alike as asked for is for the caller to compute exactly.
    """

    threshold: float
    size: int

    @property
    def rows(self) -> int:
        """Numbers of a signature that a band has."""
        fitting = (
            rows
            for rows in range(HASHES, 0, -1)
            if (1 - self.threshold**rows) ** (HASHES // rows) <= MISSED
        )
        return next(fitting, 1)

    @property
    def bands(self) -> int:
        """Number of bands of a signature."""
        return HASHES // self.rows

    def signatures(self, normalised: Sequence[str], part: int = 0) -> NDArray[np.uint32]:
        """Return the signature of each text [texts, HASHES].

        The lower of two texts' numbers are the signature of both together. Shingles of another `part` are
        other ones, though their characters be the same.
        """
        import numpy as np

        hashes, counts = character_hashes(normalised, self.size)
        hashes = mixed(hashes + np.uint64(part)) if part else hashes
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        bits = random_bits(2 * HASHES, stable_seed("minhash"))
        lowest = np.empty((HASHES, len(normalised)), dtype=np.uint32)
        for row, (factor, shift) in enumerate(zip(bits[::2] | 1, bits[1::2], strict=True)):
            found = np.minimum.reduceat(hashes * factor + shift, starts)
            lowest[row] = found >> np.uint64(32)
        return lowest.T

    def keys(self, signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return the key of each band of signatures [bands, texts]."""
        import numpy as np

        keys = np.empty((self.bands, len(signatures)), dtype=np.uint64)
        for band in range(self.bands):
            numbers = signatures[:, band * self.rows : (band + 1) * self.rows].astype(np.uint64)
            keys[band] = band
            for row in range(self.rows):
                keys[band] = mixed(keys[band] * np.uint64(0x9E3779B97F4A7C15) + numbers[:, row])
        return keys
