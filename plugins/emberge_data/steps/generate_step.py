"""The `generate_queries` step: training sets and a test set for documents that have no queries yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from emberge import (
    Artifact,
    ArtifactKind,
    Count,
    DataError,
    DataRef,
    Example,
    NumberRange,
    Preflight,
    Problem,
    Step,
    WholeNumber,
    Workspace,
    hash_evenly,
)
from emberge.contracts import DataOrigin, Expected, Split, to_json
from emberge.wording import count_noun, join_some

from emberge_data.document_rows import DOCUMENTS_FILE
from emberge_data.documents.cutting import TextPassage, cut_document
from emberge_data.documents.document_files import read_documents
from emberge_data.steps.outcome import TABLE_FILE, Outcome, SetChanges, write_changes
from emberge_data.steps.structure_queries import (
    STRUCTURE_KINDS,
    StructureKind,
    WrittenQuery,
    write_from_structure,
)
from emberge_data.steps.text_similarity import ComparedTexts, normalise

if TYPE_CHECKING:
    from emberge_data.documents.source_document import SourceDocument


# Documents that a check reads, and passages that it shows.
_CHECKED_DOCUMENTS, _SHOWN_PASSAGES = 30, 3
_PartShare = Annotated[float, NumberRange(least=0, below=1)]
_DataPart = Literal["train", "dev", "test"]
# Similarity to an earlier document at which a document is left out, and the characters of the runs by which
# documents are compared: shorter runs are common to most long texts.
_NEAR_COPY, _SHINGLE = 0.6, 24
# With fewer documents, runs of so many passages are divided in place of documents.
_FEW_DOCUMENTS, _RUN_PASSAGES = 20, 5


@dataclass(frozen=True, kw_only=True)
class GenerateQueries(Step):
    """Training pairs for documents that have no queries: each query with the passage that answers it.

    `documents` is a folder of text, Markdown, HTML and Python files, or one such file, or a file of rows with
    `text` (and `title`, `id`), as BEIR's corpora. The documents are cut into passages at headings and between
    sentences; a passage is at most 200 words long.

    Queries are titles, headings, first paragraphs of docstrings, and first sentences. A query's text is then
    taken out of the passages of its document, also out of the titles and headings, so that no passage
    contains its query. A query that stands for several passages is dropped.

    Only the first of several near copies is used, such as versions of one page. Documents are
    divided into the parts train, dev and test before any query is written, so no part asks for a document of
    another part; with fewer than 20 documents runs of passages are divided.

    The result names the training part, `data: $generated`; the other parts are `{path: $generated, split:
    dev}` and `{path: $generated, split: test}`. It also has all passages in `documents.jsonl` (`id`, `title`,
    `text`), which an evaluation on these parts searches.

    Example:
        generated:
          generate_queries:
            documents: ./handbook
    """

    produces: ClassVar[ArtifactKind] = "data"

    documents: DataRef
    """Folder of documents, one document, or a file of rows with the column `text`."""
    per_passage: Count = 2
    """Largest number of queries for a passage."""
    kinds: tuple[StructureKind, ...] = STRUCTURE_KINDS
    """Kinds of query, in order of preference."""
    dev: _PartShare = 0.1
    """Share of the documents whose queries are for development."""
    test: _PartShare = 0.1
    """Share of the documents whose queries are for the test."""
    seed: WholeNumber | None = None
    """Seed of the parts; by default the recipe's."""
    source: DataOrigin = field(default_factory=DataOrigin)
    """Origin of the documents, which the result's sets name."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        shares: Mapping[Split, float] = {"dev": self.dev, "test": self.test}
        splits = tuple(split for split, share in shares.items() if share)
        context.expect(Expected(splits=splits))
        if self.dev + self.test >= 1:
            yield context.problem("dev and test together leave nothing to train on", "test")
        path = context.data(self.documents)
        if path is None:
            return
        try:
            reading = read_documents(path, context.readers, first=_CHECKED_DOCUMENTS)
        except DataError as error:
            yield context.problem(str(error), "documents")
            return
        for warning in reading.warnings:
            yield context.warning(warning, "documents")
        passages = [passage for one in reading.documents for passage in cut_document(one)]
        noun = count_noun(len(reading.documents), "document")
        lines = (f"{one.id}: {one.full_text[:100]}" for one in passages[:_SHOWN_PASSAGES])
        context.note("documents", [f"{noun} read here, with {len(passages):,} passages:", *lines])

    def run(self, workspace: Workspace) -> Artifact:
        documents = self._read(workspace)
        groups = [cut_document(document) for document in documents]
        parts = _divide_passages(groups, dev=self.dev, test=self.test, seed=workspace.seed)
        if len(documents) < _FEW_DOCUMENTS and (self.dev or self.test):
            workspace.warn(
                f"there are fewer than {_FEW_DOCUMENTS} documents, so the parts are divided by runs of "
                "passages: queries of the test ask for passages of documents that the training has "
                "seen in part"
            )
        passages, queries = write_from_structure(documents, groups, self.kinds, self.per_passage)
        return self._write(workspace, passages, queries, parts)

    def _read(self, workspace: Workspace) -> Sequence[SourceDocument]:
        """Return the documents without near copies of earlier ones, and warn of those left out."""
        reading = read_documents(
            workspace.data(self.documents),
            workspace.readers,
            progress=lambda done, total: workspace.progress(done, total, "documents", "reading"),
        )
        for warning in reading.warnings:
            workspace.warn(warning)
        workspace.progress(0, 0, note="near copies")
        documents = reading.documents
        copies = dict.fromkeys(_find_copies(documents, workspace.work / "keys"))
        if copies:
            names = join_some(documents[number].name for number in copies)
            workspace.warn(
                f"{count_noun(len(copies), 'document')} left out: nearly a copy of another one ({names})"
            )
        return [one for number, one in enumerate(documents) if number not in copies]

    def _write(
        self,
        workspace: Workspace,
        passages: Sequence[TextPassage],
        queries: Sequence[WrittenQuery],
        parts: Sequence[_DataPart],
    ) -> Artifact:
        """Write the passages, a file of pairs for each part, their catalogue and the counts."""
        from emberge_data.written_sets import write_entries, write_json_rows

        folder = workspace.folder
        rows = ({"id": p.id, "title": p.context, "text": p.text} for p in passages if p.full_text)
        passage_count = write_json_rows(folder / DOCUMENTS_FILE, rows)
        shares: Mapping[_DataPart, float] = {"train": 1, "dev": self.dev, "test": self.test}
        changes: list[SetChanges] = []
        entries: dict[str, Any] = {}
        for part, share in shares.items():
            changes.append(SetChanges(part))
            outcomes = (
                _build_outcome(number, query, passages[query.place])
                for number, query in enumerate(queries)
                if parts[query.place] == part
            )
            pairs = (
                {"query": one.anchor, "pos": list(one.positives), "neg": []}
                for one in changes[-1].watch(outcomes)
            )
            written = write_json_rows(folder / f"{part}.jsonl", pairs)
            if written:
                entries[part] = [self._describe_part(workspace.id, part, written)]
                continue
            (folder / f"{part}.jsonl").unlink()
            if part == "train":
                raise DataError(_explain_nothing(changes[0]))
            if share:
                workspace.warn(f"the part {part} has no query; raise {part}, or add documents")
        write_entries(folder, entries)
        details = write_changes(folder, "Generated queries", changes)
        return Artifact(
            kind="data",
            size=changes[0].kept,
            details=replace(details, passages=passage_count),
            table=TABLE_FILE,
        )

    def _describe_part(self, name: str, part: _DataPart, row_count: int) -> dict[str, Any]:
        """Return a part's entry of the catalogue, with the origin of its documents."""
        entry: dict[str, Any] = {"name": name, "file": f"{part}.jsonl", "rows": row_count}
        entry |= {"task": "retrieval", "symmetric": False}
        entry |= {"source": facts} if (facts := to_json(self.source)) else {}
        return entry if part == "train" else {**entry, "documents": DOCUMENTS_FILE}


def _find_copies(documents: Sequence[SourceDocument], folder: Path) -> list[int]:
    """Return the numbers of documents that are near copies of earlier ones, such as versions of a page.

    Documents are near copies if the Jaccard similarity of their runs of _SHINGLE characters reaches
    _NEAR_COPY. Keys are in a temporary file in `folder`.
    """
    import numpy as np

    from emberge_data.steps.text_copies import join_near_copies

    texts = [
        normalise("\n".join(section.text for section in document.sections))
        for document in documents
    ]
    numbers = np.arange(len(texts))
    first = join_near_copies(
        lambda number: ComparedTexts("", (texts[number],)),
        numbers,
        folder,
        threshold=_NEAR_COPY,
        size=_SHINGLE,
    )
    return [int(number) for number in numbers[first != numbers]]


def _divide_passages(
    passages: Sequence[Sequence[TextPassage]], *, dev: float, test: float, seed: int
) -> list[_DataPart]:
    """Return the part of each passage, in order; `passages` has those of each document.

    Documents are divided, and with fewer than _FEW_DOCUMENTS of them runs of _RUN_PASSAGES passages.

    Raises:
        DataError: if there are too few passages for all parts.
    """
    flat = [passage.id for group in passages for passage in group]
    units = [group[0].id for group in passages for _ in group]
    if len(set(units)) < _FEW_DOCUMENTS:
        units = [flat[place - place % _RUN_PASSAGES] for place in range(len(flat))]
    order = sorted(dict.fromkeys(units), key=lambda unit: hash_evenly("part", seed, unit))
    held_out, dev_count = (
        max(1, round(share * len(order))) if share else 0 for share in (test, dev)
    )
    parts: list[_DataPart] = ["test"] * held_out
    parts += ["dev"] * dev_count
    if len(parts) >= len(order):
        raise DataError(
            "the documents have too few passages for all parts; add documents, or set dev: 0 or test: 0"
        )
    parts += ["train"] * (len(order) - len(parts))
    part_by_unit = dict(zip(order, parts, strict=True))
    return [part_by_unit[unit] for unit in units]


def _build_outcome(number: int, query: WrittenQuery, passage: TextPassage) -> Outcome:
    example = Example(query.text, (passage.full_text,))
    if query.problem:
        return Outcome(number, example, None, f"{query.kind}: {query.problem}")
    return Outcome(number, example, example)


def _explain_nothing(changes: SetChanges) -> str:
    if not changes.notes:
        return "the documents offer no query; name other kinds, or add documents"
    seen = "; ".join(f"{note} ({count:,})" for note, count in changes.notes.most_common(5))
    return f"no query of the training part is kept: {seen}"
