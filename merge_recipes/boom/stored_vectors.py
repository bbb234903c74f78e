"""The backbone `stored_vectors`: a text encoder whose vectors are rounded as an index stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emberge import Encoder, hookimpl, scale_to_unit
from emberge.contracts import Embedded
from emberge_encoder import TextEncoder

# Embeddings of this process by folder and token ids, so that a model scored in several forms embeds once.
_EMBEDDED: dict[tuple[Path, tuple[int, ...], bytes], Embedded] = {}


@dataclass(frozen=True, kw_only=True)
class StoredVectors(TextEncoder):
    """Vectors as they are (32 bits), as multiples of a 127th of their largest number (8), or as signs (1).

    Texts and queries are rounded alike, and scaled to length one again.
    """

    bits: Literal[32, 8, 1] = 32

    def load(self, checkpoint: Path, **options: Any) -> Encoder:
        return _RoundedEncoder(super().load(checkpoint, **options), checkpoint, self.bits)


class _RoundedEncoder:
    """The encoder, with its vectors rounded."""

    def __init__(self, encoder: Any, folder: Path, bits: int) -> None:
        self._encoder, self._folder, self._bits = encoder, folder, bits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def __call__(self, features: Mapping[str, Any], layers: Sequence[float] = ()) -> Embedded:
        ids = features["input_ids"]
        key = (self._folder, ids.shape, ids.numpy(force=True).tobytes())
        if key not in _EMBEDDED:
            _EMBEDDED[key] = self._encoder(features, layers)
        vectors = _EMBEDDED[key].embeddings
        if self._bits == 8:
            steps = vectors.abs().amax(-1, keepdim=True) / 127
            vectors = scale_to_unit((vectors / steps).round())
        elif self._bits == 1:
            vectors = scale_to_unit(vectors.sign())
        return replace(_EMBEDDED[key], embeddings=vectors)


@hookimpl
def register_backbones() -> Mapping[str, type[TextEncoder]]:
    """Return the backbone by its name."""
    return {"stored_vectors": StoredVectors}
