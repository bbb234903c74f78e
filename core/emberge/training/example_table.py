"""Dataset as token sequences of each row, with scores and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emberge.contracts import (
    Dataset,
    DatasetInfo,
    Encoder,
    Example,
    PairEncoder,
    PerDataset,
    Rows,
    TokenisedText,
    take_rows,
)
from emberge.encoding import TEXTS_AT_ONCE, Ragged, RaggedWriter, find_document_prompt
from emberge.errors import DataError
from emberge.files import fill_once
from emberge.hashes import hash_texts
from emberge.training.fit_options import Progress, ReadGuide, TextOptions
from emberge.training.loss_problems import COLUMNS_NEEDED

TABLE_VERSION = 3
ARRAY_NAMES = ("starts", "entries", "positive_counts", "scores", "labels", "text_ids")


@dataclass(frozen=True)
class TextSide:
    """Prompt and maximum length of the texts on one side of a pair, and whether they are read as queries."""

    prompt: str
    max_length: int | None
    queries: bool = False


def choose_text_sides(
    dataset: Dataset, encoder: Encoder, options: TextOptions
) -> tuple[TextSide, TextSide]:
    """Return prompt and length of anchors, and those of positives and negatives.

    The prompt is put before anchors and, if the dataset is symmetric, before every text. It is the options'
    prompt for this dataset, else the dataset's own prompt, else the options' prompt for its task, else the
    model's. Single texts are documents, also where they are anchors. An encoder that reads queries otherwise
    has anchors as queries and the other texts as documents, in symmetric datasets too.
    """
    named, model_prompt = (dataset.info.name, dataset.info.task), encoder.prompts.get("query", "")
    query = _choose_prompt(options.query_prompt, dataset, dataset.prompt, model_prompt)
    document = _choose_prompt(options.document_prompt, dataset, "", find_document_prompt(encoder))
    longest = options.max_length.of(*named)
    is_sided = encoder.reads_queries_apart
    documents = TextSide(
        query if dataset.symmetric and not is_sided else document,
        options.document_length.of(*named) or longest,
    )
    if dataset.info.task == "text":
        return documents, documents
    return TextSide(query, options.query_length.of(*named) or longest, is_sided), documents


def build_text_side(dataset: Dataset, options: TextOptions) -> TextSide:
    """Return prompt and length of texts for losses over tokens, which do not get the model's prompts."""
    named = dataset.info.name, dataset.info.task
    longest = options.query_length.of(*named) or options.max_length.of(*named)
    return TextSide(_choose_prompt(options.query_prompt, dataset, dataset.prompt, ""), longest)


def _choose_prompt(option: PerDataset[str], dataset: Dataset, of_data: str, of_model: str) -> str:
    name, task = dataset.info.name, dataset.info.task
    if name in option.by_dataset:
        return option.by_dataset[name]
    if of_data:
        return of_data
    by_task = option.of(name, task)
    return of_model if by_task is None else by_task


@dataclass(frozen=True, eq=False)
class ExampleTable:
    """Rows of a dataset; row r owns entries starts[r] to starts[r + 1]: anchor, positives, negatives.

    `entries` are indexes into `sequences`, which has each text once for each side; for an encoder of pairs,
    positives and negatives are pairs of the anchor and the text. `positive_counts` [rows] and
    `negative_counts` [rows] are numbers of texts. `scores` [entries] are NaN for entries without a score, and
    `labels` are -1 for rows without a label. `text_ids` [sequences] are equal for equal texts. `guide` maps
    entries [*k] to a guide's embeddings [*k, d].
    """

    info: DatasetInfo
    starts: NDArray[np.int64]
    entries: NDArray[np.int32]
    positive_counts: NDArray[np.int32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    text_ids: NDArray[np.int64]
    sequences: Ragged
    guide: ReadGuide | None = None

    @property
    def negative_counts(self) -> NDArray[np.int64]:
        """Number of negatives of each row."""
        return np.asarray(np.diff(self.starts) - 1 - self.positive_counts, np.int64)

    def require_columns(self, needs: frozenset[str], rows: Rows, loss: str, in_batch: bool) -> None:
        """Refuse rows that lack a column that a loss reads.

        Raises:
            DataError: if there are such rows; names dataset, row, and remedy.
        """
        row_numbers = take_rows(rows)
        for need in sorted(needs):
            words, advice = COLUMNS_NEEDED[need]
            lacking = row_numbers[self._find_lacking(need, row_numbers, in_batch)]
            if len(lacking):
                raise DataError(
                    f"dataset '{self.info.name}': row {lacking[0] + 1} has no {words}, which loss '{loss}' "
                    f"needs ({len(lacking)} of {len(rows)} rows); {advice}"
                )

    def _find_lacking(
        self, need: str, rows: NDArray[np.int64], in_batch: bool
    ) -> NDArray[np.bool_]:
        """Return the mask of the rows that lack a column."""
        has_no_negative = self.negative_counts[rows] == 0
        last_entries = self.starts[rows + 1] - 1
        # Either all positives or negatives of a row have scores, or none has; an anchor has none.
        is_unscored = np.isnan(self.scores[np.minimum(self.starts[rows] + 1, last_entries)])
        last_is_unscored = np.isnan(self.scores[last_entries])
        lacking_by_need = {
            "negative": has_no_negative,
            "contrast": has_no_negative & (not in_batch),
            "judgement": has_no_negative & is_unscored,
            "label": self.labels[rows] < 0,
            "positive_score": is_unscored,
            "negative_score": ~has_no_negative & last_is_unscored,
        }
        return np.asarray(lacking_by_need[need])


def build_table(
    dataset: Dataset,
    encoder: Encoder,
    text_sides: tuple[TextSide, TextSide],
    store: Path,
    progress: Callable[[int, int], None] | None = None,
) -> ExampleTable:
    """Return the table of a dataset, which is written once and then found in `store` by content.

    Raises:
        DataError: if a row of pairs has no positive.
    """
    # A table contains paths of media, so a dataset that was moved needs another table.
    media_hash = dataset.info.media.paths_hash if dataset.info.media is not None else ""
    parts = (
        TABLE_VERSION,
        dataset.fingerprint,
        encoder.tokenizer_fingerprint,
        text_sides,
        media_hash,
    )
    key = "\x1f".join(map(str, parts))
    folder = store / "tables" / hashlib.sha256(key.encode()).hexdigest()[:32]

    def fill(part_folder: Path) -> None:
        with RaggedWriter(part_folder) as writer:
            _TableWriter(encoder, text_sides, part_folder, writer).write(dataset, progress)

    fill_once(folder, fill)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAY_NAMES}
    return ExampleTable(dataset.info, sequences=Ragged.load(folder), **arrays)


def build_tables(
    datasets: Sequence[Dataset],
    encoder: Encoder,
    options: TextOptions,
    store: Path,
    progress: Progress,
) -> dict[str, ExampleTable]:
    """Return each dataset's table, which is written once and then found in `store`."""
    tables = {}
    for dataset in datasets:
        text_sides = choose_text_sides(dataset, encoder, options)
        note = f"reading {dataset.info.name}"
        tables[dataset.info.name] = build_table(
            dataset,
            encoder,
            text_sides,
            store,
            lambda done, total, note=note: progress(done, total, "rows", note),  # type: ignore[misc]
        )
    return tables


class _TableWriter:
    """Writer of a dataset's table, which reads the dataset once, row by row."""

    def __init__(
        self,
        encoder: Encoder,
        text_sides: tuple[TextSide, TextSide],
        folder: Path,
        writer: RaggedWriter,
    ) -> None:
        self._encoder = encoder
        self._pair_encoder = encoder if isinstance(encoder, PairEncoder) else None
        self._text_sides = text_sides
        self._folder = folder
        self._writer = writer
        self._numbers: dict[tuple[TextSide, bytes], int] = {}
        self._texts: dict[bytes, int] = {}
        self._text_ids: list[int] = []
        self._labels: dict[str, int] = {}
        self._waiting: list[tuple[TextSide, str, str | None]] = []

    def write(self, dataset: Dataset, progress: Callable[[int, int], None] | None) -> None:
        """Write the table into the folder."""
        entries: list[int] = []
        scores, nan = list[float](), float("nan")
        starts, positive_counts, labels = [0], [], []
        for row in range(len(dataset)):
            example = dataset[row]
            if not example.positives and dataset.info.task != "text":
                raise DataError(f"dataset '{dataset.info.name}': row {row + 1} has no positive")
            entries += self._number_texts(example)
            scores += [
                nan,
                *(example.positive_scores or (nan,) * len(example.positives)),
                *(example.negative_scores or (nan,) * len(example.negatives)),
            ]
            starts.append(len(entries))
            positive_counts.append(len(example.positives))
            label = example.label
            labels.append(
                -1 if label is None else self._labels.setdefault(label, len(self._labels))
            )
            if progress is not None and row % 1000 == 999:
                progress(row + 1, len(dataset))
        self._flush()
        arrays: dict[str, NDArray[Any]] = {
            "starts": np.asarray(starts, np.int64),
            "entries": np.asarray(entries, np.int32),
            "positive_counts": np.asarray(positive_counts, np.int32),
            "scores": np.asarray(scores, np.float32),
            "labels": np.asarray(labels, np.int64),
            "text_ids": np.asarray(self._text_ids, np.int64),
        }
        for name, array in arrays.items():
            np.save(self._folder / f"{name}.npy", array)

    def _number_texts(self, example: Example) -> list[int]:
        query, document = self._text_sides
        texts = (*example.positives, *example.negatives)
        query_of_pair = None if self._pair_encoder is None else example.anchor
        return [
            self._number_text(query, example.anchor),
            *(self._number_text(document, t, query_of_pair) for t in texts),
        ]

    def _number_text(self, side: TextSide, text: str, query: str | None = None) -> int:
        """Return the number of a text, or of the pair of a query and the text."""
        digest = hash_texts((text,))
        key = (side, digest if query is None else digest + hash_texts((query,)))
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._text_ids.append(self._texts.setdefault(digest, len(self._texts)))
            self._waiting.append((side, text, query))
            if len(self._waiting) >= TEXTS_AT_ONCE:
                self._flush()
        return self._numbers[key]

    def _flush(self) -> None:
        """Tokenise the waiting texts, those of one side together, and write them in their order."""
        tokens: dict[int, TokenisedText] = {}
        groups: dict[tuple[TextSide, bool], list[int]] = {}
        for number, (side, _, query) in enumerate(self._waiting):
            groups.setdefault((side, query is not None), []).append(number)
        for (side, _), numbers in groups.items():
            _, texts, queries = zip(*(self._waiting[number] for number in numbers), strict=True)
            tokens |= zip(numbers, self._tokenise(side, texts, queries), strict=True)
        self._writer.add([tokens[number] for number in range(len(tokens))])
        self._waiting.clear()

    def _tokenise(
        self, side: TextSide, texts: Sequence[str], queries: Sequence[str | None]
    ) -> list[TokenisedText]:
        if self._pair_encoder is not None and queries[0] is not None:
            return self._pair_encoder.tokenise_pairs(
                [query or "" for query in queries],
                texts,
                prompt=self._text_sides[0].prompt,
                max_length=side.max_length,
            )
        return self._encoder.tokenise(
            texts, prompt=side.prompt, max_length=side.max_length, queries=side.queries
        )
