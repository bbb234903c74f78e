"""Token ids of many texts, kept on disk and mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from emberge.contracts import Media, TokenisedText

# Texts handed to the tokenizer at once: enough for its threads, little enough for memory.
TEXTS_AT_ONCE = 4096
MEDIA_FILE, TYPES_FILE, QUERIES_FILE = "media.jsonl", "types.bin", "queries.npy"


@dataclass(frozen=True, eq=False)
class Ragged:
    """Token ids [total]; text i spans offsets[i] to offsets[i + 1]; `prompts` are the prompts' lengths.

    `media` are the images and clips of the texts that have any. `types` [total] are the token type ids of
    pairs, and `queries` [texts] marks texts that are read as queries; both are None if no text has them.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompts: NDArray[np.int32]
    media: Mapping[int, tuple[Media, ...]] = field(default_factory=dict)
    types: NDArray[np.int8] | None = None
    queries: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> TokenisedText:
        tokens = slice(self.offsets[index], self.offsets[index + 1])
        return TokenisedText(
            self.ids[tokens],  # type: ignore[arg-type]
            int(self.prompts[index]),
            None if self.types is None else self.types[tokens],  # type: ignore[arg-type]
            self.media.get(index, ()),
            bool(self.queries is not None and self.queries[index]),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of every text."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, texts: Sequence[TokenisedText]) -> Ragged:
        """Return the texts' ids, concatenated."""
        lengths = np.fromiter((len(t.ids) for t in texts), np.int64, len(texts))
        ids_by_text = [np.asarray(t.ids, dtype=np.int32) for t in texts]
        ids = np.concatenate(ids_by_text) if ids_by_text else np.zeros(0, np.int32)
        prompts = np.fromiter((t.prompt_length for t in texts), np.int32, len(texts))
        media = {index: text.media for index, text in enumerate(texts) if text.media}
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        are_queries = np.fromiter((text.is_query for text in texts), np.bool_, len(texts))
        queries = are_queries if are_queries.any() else None
        return cls(ids, offsets, prompts, media, _join_types(texts), queries)

    @classmethod
    def load(cls, folder: Path) -> Ragged:
        """Return the files of a RaggedWriter, mapped into memory."""
        path = folder / "ids.bin"
        empty = path.stat().st_size == 0
        ids = np.zeros(0, np.int32) if empty else np.memmap(path, np.int32, mode="r")
        offsets, prompts = np.load(folder / "offsets.npy"), np.load(folder / "prompts.npy")
        types_path, queries_path = folder / TYPES_FILE, folder / QUERIES_FILE
        types = np.memmap(types_path, np.int8, mode="r") if types_path.exists() else None
        queries = np.load(queries_path) if queries_path.exists() else None
        return cls(ids, offsets, prompts, _read_media(folder / MEDIA_FILE), types, queries)


def _join_types(texts: Sequence[TokenisedText]) -> NDArray[np.int8] | None:
    """Return the token types of texts, one after another, with zeros for texts without any."""
    if all(text.types is None for text in texts):
        return None
    zeros = (np.zeros(len(text.ids), np.int8) for text in texts)
    parts = [
        empty if text.types is None else np.asarray(text.types, np.int8)
        for text, empty in zip(texts, zeros, strict=True)
    ]
    return np.concatenate(parts)


class RaggedWriter:
    """A writer that streams token ids to files, so that a large dataset need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / "ids.bin").open("wb")
        self._lengths: list[NDArray[np.int64]] = []
        self._prompts: list[NDArray[np.int32]] = []
        self._media: dict[int, tuple[Media, ...]] = {}
        self._queries: list[NDArray[np.bool_]] = []
        self._types: BinaryIO | None = None
        self._count = self._tokens = 0

    def add(self, texts: Sequence[TokenisedText]) -> None:
        """Append the tokens of texts."""
        part = Ragged.of(texts)
        part.ids.tofile(self._file)
        self._add_types(part)
        marks = part.queries
        self._queries.append(np.zeros(len(part), np.bool_) if marks is None else marks)
        self._lengths.append(part.lengths)
        self._prompts.append(part.prompts)
        self._media |= {self._count + index: media for index, media in part.media.items()}
        self._count += len(part)

    def _add_types(self, part: Ragged) -> None:
        """Append the token types; the file begins with the first text that has some."""
        if part.types is not None and self._types is None:
            self._types = (self._folder / TYPES_FILE).open("wb")
            np.zeros(self._tokens, np.int8).tofile(self._types)
        if self._types is not None:
            types = part.types
            (np.zeros(len(part.ids), np.int8) if types is None else types).tofile(self._types)
        self._tokens += len(part.ids)

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if self._types is not None:
            self._types.close()
        if kind is None:
            self._finish()

    def _finish(self) -> None:
        """Write the offsets at which texts begin."""
        lengths = np.concatenate([np.zeros(1, np.int64), *self._lengths])
        np.save(self._folder / "offsets.npy", np.cumsum(lengths))
        np.save(
            self._folder / "prompts.npy", np.concatenate([np.zeros(0, np.int32), *self._prompts])
        )
        if any(marks.any() for marks in self._queries):
            np.save(self._folder / QUERIES_FILE, np.concatenate(self._queries))
        if self._media:
            _write_media(self._folder / MEDIA_FILE, self._media)


def _write_media(path: Path, media: Mapping[int, tuple[Media, ...]]) -> None:
    """Write a line for each text with media: its index, and each medium's kind, hash and path."""
    with path.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for index, text_media in media.items():
            file.write(json.dumps([index, *([m.kind, m.hash, m.path] for m in text_media)]) + "\n")


def _read_media(path: Path) -> Mapping[int, tuple[Media, ...]]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", errors="surrogatepass") as file:
        lines = (json.loads(line) for line in file)
        return {index: tuple(Media(*facts) for facts in media) for index, *media in lines}
