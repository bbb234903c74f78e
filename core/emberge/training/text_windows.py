"""Windows of single texts: a long text is cut into several, each with the special tokens of a whole text."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emberge.contracts import Dataset, DatasetInfo, TokenisedText, TokenPredictor
from emberge.encoding import TEXTS_AT_ONCE, Ragged, RaggedWriter, TextEmbedder
from emberge.errors import DataError
from emberge.files import fill_once
from emberge.training.example_table import TextSide, build_text_side
from emberge.training.fit_options import Progress, TextOptions

WINDOWS_VERSION = 3
# A number of tokens that no text reaches.
UNREACHED_LENGTH = 2**31 - 1


@dataclass(frozen=True, eq=False)
class WindowTable:
    """Windows of a dataset's texts, each a row of a batch, so that `info` counts windows.

    `sequences` are their tokens, and `text_rows` [windows] the dataset's rows of their texts.
    """

    info: DatasetInfo
    sequences: Ragged
    text_rows: NDArray[np.int64]


def build_windows(
    dataset: Dataset,
    encoder: TokenPredictor,
    options: TextOptions,
    store: Path,
    progress: Progress,
) -> WindowTable:
    """Return the windows of a dataset of single texts: cut at the first call, later read from `store`.

    Raises:
        DataError: if neither options nor model limit the tokens of a window, or if special tokens and prompt
            fill it.
    """
    name = dataset.info.name
    side = build_text_side(dataset, options)
    longest = side.max_length or encoder.max_length
    if longest is None:
        raise DataError(f"dataset '{name}': the model has no limit of tokens; give max_length")
    side = dataclasses.replace(side, max_length=longest)
    key_parts = (f"windows{WINDOWS_VERSION}", dataset.fingerprint, encoder.tokenizer_fingerprint)
    key = "\x1f".join(map(str, (*key_parts, side)))
    folder = store / "tables" / hashlib.sha256(key.encode()).hexdigest()[:32]

    def fill(part_folder: Path) -> None:
        text_rows: list[NDArray[np.int64]] = []
        with RaggedWriter(part_folder) as writer:
            for first, rows in _read_pieces(dataset):
                for row, windows in enumerate(_cut_windows(encoder, rows, side, name), first):
                    writer.add(windows)
                    text_rows.append(np.full(len(windows), row, np.int64))
                progress(first + len(rows), len(dataset), "rows", f"reading {name}")
        np.save(part_folder / "text_rows.npy", np.concatenate([np.zeros(0, np.int64), *text_rows]))

    fill_once(folder, fill)
    sequences = Ragged.load(folder)
    info = dataclasses.replace(dataset.info, size=len(sequences), tokens=sequences.lengths)
    return WindowTable(info, sequences, np.load(folder / "text_rows.npy", mmap_mode="r"))


def _read_pieces(dataset: Dataset) -> Iterator[tuple[int, list[str]]]:
    for first in range(0, len(dataset), TEXTS_AT_ONCE):
        rows = range(first, min(first + TEXTS_AT_ONCE, len(dataset)))
        yield first, [dataset[row].anchor for row in rows]


def _cut_windows(
    encoder: TokenPredictor, texts: Sequence[str], side: TextSide, name: str
) -> Iterator[list[TokenisedText]]:
    """Yield the windows of each text."""
    uncut_texts = encoder.tokenise(texts, prompt=side.prompt, max_length=UNREACHED_LENGTH)
    for text, is_text_token in zip(
        uncut_texts, TextEmbedder(encoder).mask_text_tokens(uncut_texts), strict=True
    ):
        ids = np.asarray(text.ids, np.int64)
        positions = np.flatnonzero(is_text_token)
        # The prompt's tokens are not special tokens, and are put before the tokens of every window.
        start = max(int(positions[0]) if len(positions) else len(ids), text.prompt_length)
        end = int(positions[-1]) + 1 if len(positions) else len(ids)
        prefix, body, after = np.split(ids, [start, max(start, end)])
        body_length = (side.max_length or UNREACHED_LENGTH) - len(prefix) - len(after)
        if body_length < 1:
            raise DataError(
                f"dataset '{name}': max_length {side.max_length} leaves no room for text: special tokens and "
                f"prompt are {len(prefix) + len(after)}; raise it"
            )
        cuts = range(0, max(1, len(body)), body_length)
        windows = [np.concatenate([prefix, body[cut : cut + body_length], after]) for cut in cuts]
        yield [TokenisedText(window.tolist(), text.prompt_length) for window in windows]
