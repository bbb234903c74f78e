"""Facts of rows that decide a training: their number, their tasks, and the lengths of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError, Example, TaskKind, show_media
from emberge.wording import count_noun, shorten

from emberge_adapt.adapt_data import AdaptData

if TYPE_CHECKING:
    from emberge import Plugins, Reader
    from emberge.data import StoredDataset

SHOWN_ROWS = 3
SHOWN_CHARACTERS = 90
# Texts of each side whose tokens are counted, and the share of them that a length must hold whole.
SAMPLED_TEXTS = 400
COVERED_SHARE = 0.95
FEWEST_ROWS = 50
FEWEST_QUERIES, FEWEST_DOCUMENTS = 30, 10
"""Different texts that rows need, so that a part to train on and parts to test share none."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts of all rows: their number, tasks, distinct texts, tokens of both sides, and the first rows.

    `smallest_set` is about the number of rows of the smallest set. Rows that repeat others are not counted.
    `query_tokens` and `document_tokens` are numbers of tokens that most texts do not exceed. With
    `is_passages`, the rows are passages of documents, and their headings stand for queries.
    """

    rows: int
    tasks: tuple[TaskKind, ...]
    sets: tuple[str, ...]
    smallest_set: int
    queries: int
    documents: int
    has_negatives: bool
    query_tokens: int
    document_tokens: int
    columns: str = ""
    examples: tuple[Example, ...] = ()
    notes: tuple[str, ...] = ()
    is_passages: bool = False

    @property
    def units_by_row(self) -> float:
        """Queries, or scored pairs, of an evaluation by the number of its rows, 0 to 1."""
        return 1.0 if "sts" in self.tasks else min(1.0, self.queries / self.rows)

    @property
    def summary(self) -> str:
        """The counts of rows or passages as one line."""
        if self.is_passages:
            return f"{self.sets[0]}, {count_noun(self.rows, 'passage')}; queries will be generated"
        sets = f" in {count_noun(len(self.sets), 'set')}" if len(self.sets) > 1 else ""
        kinds = ", ".join(task.replace("_", " ") for task in self.tasks)
        return (
            f"{count_noun(self.rows, 'row')}{sets} for {kinds}: {count_noun(self.queries, 'query')}, "
            f"{count_noun(self.documents, 'document')}"
        )

    def preview(self) -> Iterator[str]:
        """Yield what was understood of the data as lines for the terminal, with three rows."""
        yield self.summary
        if self.columns:
            yield f"columns: {self.columns}"
        for number, example in enumerate(self.examples, 1):
            yield _describe_example(number, example)
        yield from (f"note: {note}" for note in self.notes)


def _describe_example(number: int, example: Example) -> str:
    """Return a row as one line: its anchor, and its positive with its score or its label."""
    answer = example.positives[0] if example.positives else example.label or ""
    anchor, answer = (
        shorten(show_media(text), SHOWN_CHARACTERS) for text in (example.anchor, answer)
    )
    scores = example.positive_scores
    return f"{number}. {anchor} → {answer}" + (
        "" if scores is None else f" (score {scores[0]:.3g})"
    )


def read_data_facts(data: AdaptData, model_folder: Path, plugins: Plugins) -> DataFacts:
    """Read and check all rows of the data, and count the tokens of a sample by the model's tokenizer.

    Of documents, each passage counts as one row: about as many queries will be generated.

    Raises:
        DataError: if a row cannot be used, rows have no partner, documents have no text, or there are fewer
            rows than `FEWEST_ROWS` or different texts than they need.
        CheckpointError: if the model has no tokenizer.
    """
    from emberge_encoder import load_tokenizer

    readers = plugins.build_every("reader")
    rows = (_read_passages if data.kind == "documents" else _read_rows)(data, readers)
    is_passages = data.kind == "documents"
    sample = _RowSample(rows.count, drops_repeats=not is_passages)
    for example in rows.examples:
        sample.add(example)
    notes, repeats = rows.notes, rows.count - sample.row_count
    if repeats:
        notes = (*notes, f"{count_noun(repeats, 'row')} left out that repeat others")
    if sample.row_count < FEWEST_ROWS:
        noun = "different passage" if is_passages else "different row"
        raise DataError(
            f"{data.label}: {count_noun(sample.row_count, noun)}; with fewer than {FEWEST_ROWS} neither "
            "a training nor a test shows more than chance; add some"
        )
    if len(sample.scores) == 1:
        raise DataError(
            f"{data.label}: all rows have the score {sample.scores.pop():g}, from which no order is learnt; "
            "add rows with other scores, or leave the column out by --columns"
        )
    if not is_passages:
        _require_different_texts(data, sample)
    tokenizer = load_tokenizer(model_folder)
    return DataFacts(
        rows=sample.row_count,
        tasks=rows.tasks,
        sets=rows.sets,
        smallest_set=(rows.smallest_set or rows.count) * sample.row_count // rows.count,
        queries=len(sample.query_hashes),
        documents=len(sample.document_hashes),
        has_negatives=sample.has_negatives and not rows.draws_positives,
        query_tokens=_cover_lengths(tokenizer, sample.queries),
        document_tokens=_cover_lengths(tokenizer, sample.documents or sample.queries),
        columns=rows.columns,
        examples=tuple(sample.first_rows),
        notes=notes,
        is_passages=is_passages,
    )


@dataclass(frozen=True, kw_only=True)
class _ReadRows:
    """All rows of the data, one after another, and what their files say of them."""

    count: int
    examples: Iterable[Example]
    tasks: tuple[TaskKind, ...] = ("retrieval",)
    sets: tuple[str, ...] = ()
    smallest_set: int | None = None
    columns: str = ""
    draws_positives: bool = False
    notes: tuple[str, ...] = ()


def _read_rows(data: AdaptData, readers: Sequence[Reader]) -> _ReadRows:
    from emberge.data import load_datasets

    try:
        sets = load_datasets(
            [data.to_data_entry()], readers=readers, resolve=lambda reference: Path(reference.text)
        )
    except DataError as error:
        raise DataError(_write_as_option(str(error))) from error
    _require_partners(data, sets)
    return _ReadRows(
        count=sum(map(len, sets)),
        examples=(one_set[row] for one_set in sets for row in range(len(one_set))),
        tasks=tuple(dict.fromkeys(one_set.info.task for one_set in sets)),
        sets=tuple(one_set.info.name for one_set in sets),
        smallest_set=min(map(len, sets)),
        columns="; ".join(dict.fromkeys(one_set.columns for one_set in sets if one_set.columns)),
        draws_positives=any(one_set.draws_positives for one_set in sets),
    )


def _write_as_option(message: str) -> str:
    """Return a message on columns in the words of `--columns`, with its quotes."""
    part = r"\b(anchor|positive)(?= names '| is '| among | \((?:anchor|columns))"
    words = {"anchor": "query", "positive": "document"}
    text = re.sub(part, lambda match: words[match[1]], message)
    entry = r"columns: \{anchor: (.*), positive: (.*)\} .* in the entry"
    return re.sub(entry, r'--columns "query=\1,document=\2"', text)


def _read_passages(data: AdaptData, readers: Sequence[Reader]) -> _ReadRows:
    from emberge_data import cut_document, read_documents

    reading = read_documents(Path(data.entry["path"]), readers)
    passages = [passage for document in reading.documents for passage in cut_document(document)]
    return _ReadRows(
        count=len(passages),
        examples=(Example(passage.context, (passage.text,)) for passage in passages),
        sets=(count_noun(len(reading.documents), "document"),),
        notes=reading.warnings,
    )


class _RowSample:
    """Counts of distinct texts, the first rows, and an even sample of `total` rows' texts."""

    def __init__(self, total: int, drops_repeats: bool) -> None:
        self._stride = max(1, total // SAMPLED_TEXTS)
        self.row_count = 0
        self._drops_repeats = drops_repeats
        self._row_hashes: set[int] = set()
        self.scores: set[float] = set()
        self.has_negatives = False
        # Hashes, as the texts of large data would fill the memory.
        self.query_hashes: set[int] = set()
        self.document_hashes: set[int] = set()
        self.queries: list[str] = []
        self.documents: list[str] = []
        self.first_rows: list[Example] = []

    def add(self, example: Example) -> None:
        """Count a row, unless it repeats another, and add its texts to the sample if its turn has come."""
        row = hash((example.anchor, tuple(example.positives), example.label))
        if row in self._row_hashes and self._drops_repeats:
            return
        self._row_hashes.add(row)
        self.scores |= {*(example.positive_scores or ()), *(example.negative_scores or ())}
        self.query_hashes.add(hash(example.anchor))
        self.document_hashes.update(map(hash, example.positives))
        self.has_negatives |= bool(example.negatives)
        if self.row_count % self._stride == 0:
            self.queries.append(example.anchor)
            self.documents.extend(example.positives[:1])
        if len(self.first_rows) < SHOWN_ROWS:
            self.first_rows.append(example)
        self.row_count += 1


def _require_partners(data: AdaptData, sets: Sequence[StoredDataset]) -> None:
    for one_set in sets:
        if one_set.info.task == "text":
            raise DataError(
                f"{data.label}: '{one_set.info.name}' has one column of texts "
                f"({one_set.columns}), and a pair needs two; add the document that answers each query, or "
                "name a folder of documents"
            )


def _require_different_texts(data: AdaptData, sample: _RowSample) -> None:
    for noun, hashes, fewest in (
        ("query", sample.query_hashes, FEWEST_QUERIES),
        ("document", sample.document_hashes, FEWEST_DOCUMENTS),
    ):
        if 0 < len(hashes) < fewest:  # rows with labels have no documents
            raise DataError(
                f"{data.label}: {count_noun(sample.row_count, 'row')} with only "
                f"{count_noun(len(hashes), f'different {noun}')}; to train and to test on different ones, "
                f"{fewest} or more are needed; add some, and see that no columns are exchanged"
            )


def _cover_lengths(tokenizer: Any, texts: Sequence[str]) -> int:
    """Return the number of tokens that `COVERED_SHARE` of the texts do not exceed."""
    encoded = tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
    lengths = sorted(map(len, encoded))
    return lengths[min(len(lengths) - 1, int(COVERED_SHARE * len(lengths)))]
