"""Randomness that is the same on every machine, from stable hashes and raw bits of a generator.

Python's `hash` of a string differs between processes, and the derived methods of NumPy's generators may
change between releases; a keyed hash and the raw bits of PCG64 do not change.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def make_seed(*parts: Any) -> int:
    """Return a 63-bit seed that depends on the text of every part and on their order."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def hash_evenly(*words: object) -> int:
    """Return a hash of the words in [0, 2⁶⁴), evenly distributed and the same on every machine."""
    text = "\x1f".join(str(word) for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def draw_bits(size: int, seed: int) -> NDArray[np.uint64]:
    """Return `size` random words of 64 bits [size]."""
    import numpy as np

    return np.asarray(np.random.PCG64(seed).random_raw(size), dtype=np.uint64).reshape(size)


def draw_order(size: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers 0 to size - 1 in a random order [size]."""
    import numpy as np

    return np.argsort(draw_bits(size, seed), kind="stable").astype(np.int64)
