"""Embeddings of many texts: computed once, kept on disk, mapped into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from emberge import CheckpointError, Encoder, TokenisedText
from emberge.contracts import PairEncoder
from emberge.encoding import Ragged, TextEmbedder
from emberge.files import fill_once
from emberge.hashes import hash_texts
from emberge.interpreter import return_freed_memory
from emberge.ranks import SINGLE_RANK, RankGroup
from numpy.typing import NDArray

# Texts that are embedded and written at once: what a kill can cost, and what is in memory at a time.
SEGMENT = 4096


@dataclass(frozen=True, eq=False)
class Vectors:
    """Embeddings of a list of texts, in order, mapped from the files of a store.

    `vectors[positions]` returns float32 [n, dimension] for a slice or for positions int64 [n]. `numbers` are
    the texts' positions in the `segments`, of SEGMENT rows each.
    """

    dimension: int
    segments: Sequence[NDArray[np.float32]]
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, positions: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        segments, rows = np.divmod(self.numbers[positions], SEGMENT)
        vectors = np.empty((len(rows), self.dimension), np.float32)
        for number in np.unique(segments):
            is_inside = segments == number
            vectors[is_inside] = self.segments[number][rows[is_inside]]
        return vectors


class EmbeddingStore:
    """Embeddings by model, prompt, length and list of texts, in a folder that steps and models share.

    Each distinct text of a list is embedded once, in segments of SEGMENT texts, each written at once. The
    list alone decides which texts are embedded together, so a killed run that is continued ends with the same
    bytes. Ranks take turns.

    `model_key` identifies all that decides an embedding except prompt, length and text: the checkpoint's
    fingerprint and the options of its backbone. `progress(done, total, unit)` is called after every chunk.
    `model_name` is the model's name in messages.
    """

    def __init__(
        self,
        store: Path,
        encoder: Encoder,
        *,
        model_key: str,
        token_budget: int | None = None,
        progress: Callable[[int, int, str], None] | None = None,
        ranks: RankGroup = SINGLE_RANK,
        model_name: str = "the model",
    ) -> None:
        self.store = store
        self.encoder = encoder
        self._model_key = model_key
        self._ranks = ranks
        self._embedder = TextEmbedder(encoder, token_budget=token_budget, model=model_name)
        self._progress = progress

    def embed(
        self, texts: Sequence[str], *, prompt: str = "", max_length: int | None = None
    ) -> Vectors:
        """Return embeddings in the order of `texts`, each read as a document with `prompt` before it.

        Raises:
            CheckpointError: if embeddings are not finite.
        """

        def tokenise(positions: NDArray[np.int64]) -> Sequence[TokenisedText]:
            selected = [texts[int(position)] for position in positions]
            return self.encoder.tokenise(selected, prompt=prompt, max_length=max_length)

        return self._embed(hash_texts(texts), tokenise, "texts", prompt, str(max_length))

    def embed_pairs(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        *,
        prompt: str = "",
        max_length: int | None = None,
    ) -> Vectors:
        """Return the scores [n, 1] of pairs by a `PairEncoder`, in order, each query with `prompt` before it.

        Raises:
            CheckpointError: if the encoder scores no pairs, or scores are not finite.
        """
        encoder = self.encoder
        if not isinstance(encoder, PairEncoder):
            raise CheckpointError(
                f"{type(encoder).__name__} scores no pairs of texts (PairEncoder); choose a backbone that "
                "does, such as cross_encoder"
            )

        def tokenise(positions: NDArray[np.int64]) -> Sequence[TokenisedText]:
            selected = [
                [texts[int(position)] for position in positions] for texts in (queries, documents)
            ]
            return encoder.tokenise_pairs(*selected, prompt=prompt, max_length=max_length)

        first, second = hash_texts(queries), hash_texts(documents)
        starts = range(0, len(first), 16)
        keys = b"".join(_hash(first[a : a + 16], second[a : a + 16]) for a in starts)
        return self._embed(keys, tokenise, "pairs", prompt, str(max_length))

    def embed_tokens(self, texts: Sequence[TokenisedText] | Ragged) -> Vectors:
        """Return embeddings of tokenised texts.

        Raises:
            CheckpointError: if embeddings are not finite.
        """
        keys = b"".join(_hash_tokens(texts[position]) for position in range(len(texts)))
        return self._embed(
            keys, lambda positions: [texts[int(position)] for position in positions], "tokens"
        )

    def _embed(
        self,
        keys: bytes,
        tokenise: Callable[[NDArray[np.int64]], Sequence[TokenisedText]],
        *key_parts: str,
    ) -> Vectors:
        """Return the vectors of texts with these keys of 16 bytes each, computed where they are missing."""
        name = "\x1f".join((self._model_key, *key_parts, _hash(keys).hex()))
        folder = self.store / "embeddings" / hashlib.sha256(name.encode()).hexdigest()[:32]
        _, first, inverse = np.unique(
            np.frombuffer(keys, "V16"), return_index=True, return_inverse=True
        )
        order = np.argsort(first)  # as the texts come
        segments = [order[start : start + SEGMENT] for start in range(0, len(order), SEGMENT)]
        for number, segment in enumerate(segments):
            if number % self._ranks.size == self._ranks.rank:
                positions = first[segment]
                done = number * SEGMENT

                def fill(
                    part_folder: Path, positions: NDArray[np.int64] = positions, done: int = done
                ) -> None:
                    self._embedder.progress = self._show_progress(done, len(order))
                    vectors = self._embedder.embed_tokens(tokenise(positions))
                    np.save(part_folder / "vectors.npy", vectors.astype(np.float32))
                    return_freed_memory()

                fill_once(folder / str(number), fill)
        self._ranks.wait_for_all()
        files = [
            np.load(folder / str(number) / "vectors.npy", mmap_mode="r")
            for number in range(len(segments))
        ]
        return Vectors(self.encoder.dimension, files, np.argsort(order)[inverse])

    def _show_progress(self, before: int, total: int) -> Callable[[int, int, str], None] | None:
        report = self._progress
        if report is None:
            return None
        return lambda done, _, unit: report(before + done, total, unit)


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _hash_tokens(text: TokenisedText) -> bytes:
    # Images of one size have equal ids.
    media = "".join(media.hash for media in text.media)
    ids: NDArray[Any] = np.asarray(text.ids, np.int32)
    return _hash(f"{text.prompt_length} {media}".encode(), ids.tobytes())
