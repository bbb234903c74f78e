"""Embeddings of many texts: computed once, kept on disk, mapped into memory."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emberge.contracts import Encoder, PairEncoder, TokenisedText
from emberge.encoding.embedder import TextEmbedder
from emberge.encoding.token_files import Ragged
from emberge.errors import CheckpointError
from emberge.files import fill_once
from emberge.hashes import text_keys
from emberge.interpreter import return_freed_memory
from emberge.ranks import ALONE, Ranks

# Texts that are embedded and written at once: what a kill can cost, and what is in memory at a time.
SEGMENT = 4096
Keys = NDArray[np.void]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Embeddings of a list of texts, in order, mapped from the files of a store.

    `vectors[places]` returns float32 [n, dimension] for a slice or for places int64 [n].
    """

    dimension: int
    files: Sequence[NDArray[Any]]
    file_of: NDArray[np.int32]
    row_of: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.file_of)

    def __getitem__(self, places: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        files, rows = self.file_of[places], self.row_of[places]
        vectors = np.empty((len(files), self.dimension), np.float32)
        for number in np.unique(files):
            in_file = files == number
            vectors[in_file] = self.files[number][rows[in_file]]
        return vectors


class EmbeddingStore:
    """Embeddings by model, prompt, length and text, in a folder that steps and models share.

    Texts are embedded in segments of SEGMENT texts, each written at once. The segments of a list of texts are
    planned once, and the plan is stored: if a killed run is continued, it embeds the same texts together,
    with the same bytes. Ranks take turns. A text that an earlier list contained is not embedded again.

    `model` identifies all that decides an embedding except prompt, length and text: the checkpoint's
    fingerprint and the options of its backbone. `progress(done, total, unit)` is called after every chunk.
    `name` is the model's name in messages.
    """

    def __init__(
        self,
        store: Path,
        encoder: Encoder,
        *,
        model: str,
        token_budget: int | None = None,
        progress: Callable[..., None] | None = None,
        ranks: Ranks = ALONE,
        name: str = "the model",
    ) -> None:
        self.store = store
        self._model = model
        self._ranks = ranks
        self._embedder = TextEmbedder(encoder, token_budget=token_budget, model=name)
        self._progress = progress

    @property
    def encoder(self) -> Encoder:
        """The encoder of texts that the store lacks."""
        return self._embedder.encoder

    def embed(
        self, texts: Sequence[str], *, prompt: str = "", max_length: int | None = None
    ) -> Vectors:
        """Return embeddings in the order of `texts`, each text with `prompt` before it.

        Raises:
            CheckpointError: if embeddings are not finite.
        """

        def tokens(places: NDArray[np.int64]) -> Sequence[TokenisedText]:
            selected = [texts[int(place)] for place in places]
            return self._embedder.tokenise(selected, prompt=prompt, max_length=max_length)

        keys = np.frombuffer(text_keys(texts), "V16")
        return self._fill_folder(self._name_folder("texts", prompt, str(max_length)), keys, tokens)

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

        def tokens(places: NDArray[np.int64]) -> Sequence[TokenisedText]:
            selected = [[texts[int(place)] for place in places] for texts in (queries, documents)]
            return encoder.tokenise_pairs(*selected, prompt=prompt, max_length=max_length)

        sides = [text_keys(texts) for texts in (queries, documents)]
        keys = np.frombuffer(_hash_pairs(*sides), "V16")
        return self._fill_folder(self._name_folder("pairs", prompt, str(max_length)), keys, tokens)

    def embed_tokens(self, texts: Sequence[TokenisedText] | Ragged) -> Vectors:
        """Return embeddings of tokenised texts, stored for exactly this list of texts.

        Other stored lists are not searched for these texts, as a training's bytes must not depend on earlier
        work.

        Raises:
            CheckpointError: if embeddings are not finite.
        """
        hashes = b"".join(_hash_tokens(texts[place]) for place in range(len(texts)))
        keys = np.frombuffer(hashes, "V16")
        folder = self._name_folder("tokens", _hash(keys.tobytes()).hex())
        return self._fill_folder(
            folder, keys, lambda places: [texts[int(place)] for place in places]
        )

    def _name_folder(self, *parts: str) -> Path:
        name = "\x1f".join((self._model, *parts))
        return self.store / "embeddings" / hashlib.sha256(name.encode()).hexdigest()[:32]

    def _fill_folder(
        self,
        folder: Path,
        keys: Keys,
        tokens: Callable[[NDArray[np.int64]], Sequence[TokenisedText]],
    ) -> Vectors:
        """Embed the texts that the folder lacks, segment by segment, and return the vectors of all keys."""
        request = _hash(keys.tobytes()).hex()
        plan = self._share_places(lambda: _plan_rows(folder, request, keys))
        for start in range(0, len(plan), SEGMENT):
            if (start // SEGMENT) % self._ranks.size != self._ranks.rank:
                continue
            places = plan[start : start + SEGMENT]

            def fill(side: Path, places: NDArray[np.int64] = places, start: int = start) -> None:
                self._embedder.progress = self._show_progress(start, len(plan))
                self._write(side, keys[places], tokens(places))

            fill_once(folder / _hash(keys[places].tobytes()).hex(), fill)
        self._ranks.wait_for_all()
        return self._open_vectors(folder, keys)

    def _share_places(self, find: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return, on every rank, the indices that the first rank finds."""
        places: list[NDArray[np.int64]] = []
        self._ranks.on_first_rank(lambda: places.append(find()))
        tensors = {"places": torch.from_numpy(places[0])} if places else None
        return self._ranks.broadcast(tensors)["places"].numpy()

    def _write(self, side: Path, keys: Keys, tokens: Sequence[TokenisedText]) -> None:
        """Embed one segment and write its files."""
        vectors = self._embedder.embed_tokens(tokens)
        np.save(side / "vectors.npy", vectors.astype(np.float32))
        np.save(side / "keys.npy", keys.view(np.uint8).reshape(-1, 16))
        return_freed_memory()

    def _show_progress(self, before: int, total: int) -> Callable[..., None] | None:
        if self._progress is None:
            return None
        report = self._progress
        return lambda done, _, unit: report(before + done, total, unit)

    def _open_vectors(self, folder: Path, keys: Keys) -> Vectors:
        """Return the vectors of these keys, each of which must be in the folder."""
        index = _SegmentIndex.read(folder)
        places = index.places(keys)
        file_of, row_of = index.file_of[places], index.row_of[places]
        files = [np.load(path / "vectors.npy", mmap_mode="r") for path in index.folders]
        return Vectors(self._embedder.encoder.dimension, files, file_of, row_of)


@dataclass(frozen=True, eq=False)
class _SegmentIndex:
    """Keys of a folder's segments in order, and the file and row of each."""

    folders: Sequence[Path]
    keys: Keys
    file_of: NDArray[np.int32]
    row_of: NDArray[np.int32]

    @classmethod
    def read(cls, folder: Path) -> _SegmentIndex:
        paths = sorted(p for p in folder.glob("[!.]*") if (p / "keys.npy").is_file())
        parts = [np.load(path / "keys.npy").view("V16").reshape(-1) for path in paths]
        segment_keys = np.concatenate([np.zeros(0, "V16"), *parts])
        files = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
        rows = np.concatenate(
            [np.zeros(0, np.int32), *(np.arange(len(part), dtype=np.int32) for part in parts)]
        )
        order = np.argsort(segment_keys, kind="stable")
        return cls(paths, segment_keys[order], files[order], rows[order])

    def places(self, keys: Keys) -> NDArray[np.int64]:
        """Return the index of each key, or -1."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        positions = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[positions] == keys, positions, -1)


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _hash_pairs(queries: bytes, documents: bytes) -> bytes:
    """Return the keys of pairs, one after another, from the keys of their texts."""
    starts = range(0, len(queries), 16)
    return b"".join(_hash(queries[a : a + 16], documents[a : a + 16]) for a in starts)


def _hash_tokens(text: TokenisedText) -> bytes:
    # Images of one size have equal ids.
    media = "".join(media.hash for media in text.media)
    ids = np.asarray(text.ids, np.int32)
    return _hash(f"{text.prompt_length} {media}".encode(), ids.tobytes())


def _plan_rows(folder: Path, request: str, keys: Keys) -> NDArray[np.int64]:
    """Return the indices of the texts to embed, each distinct text once, as planned by the first run.

    If the list is requested again after a kill, its plan is kept, so that its segments are the same.
    """

    def fill(side: Path) -> None:
        _, first = np.unique(keys, return_index=True)
        first.sort()
        np.save(side / "plan.npy", first[_SegmentIndex.read(folder).places(keys[first]) < 0])

    path = folder / f"plan-{request}"
    plan: NDArray[np.int64] = np.load(fill_once(path, fill) / "plan.npy")
    is_planned = np.zeros(len(keys), bool)
    is_planned[plan] = True
    is_unplanned = ~np.isin(keys, keys[is_planned])
    places = _SegmentIndex.read(folder).places(keys[is_unplanned])
    if (places < 0).any():  # segments were deleted since
        shutil.rmtree(path)
        plan = np.load(fill_once(path, fill) / "plan.npy")
    return plan
