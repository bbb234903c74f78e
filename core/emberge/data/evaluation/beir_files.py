"""Retrieval sets in BEIR's layout: documents, queries, and judgements in a file of tabs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from emberge.contracts import Split
from emberge.data.document_rows import parse_document
from emberge.data.entry import EvalSet
from emberge.data.evaluation.eval_data import RetrievalData
from emberge.data.file_summary import format_path
from emberge.data.rows.line_files import read_text_lines
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_faults import SetFaults
from emberge.data.sampling import even_place, sample_rows
from emberge.errors import DataError

_GRADE = re.compile(r"\s*(-?[0-9]{1,9})(?:\.0*)?\s*")
Judgement = tuple[str, tuple[str, str, int]]
PlacedRows = Iterable[tuple[str, Mapping[str, Any]]]


def read_retrieval(
    eval_set: EvalSet,
    *,
    corpus: PlacedRows,
    queries: PlacedRows,
    split: str,
    limit: int | None,
    media: MediaValues,
    faults: SetFaults,
) -> RetrievalData:
    """Join documents, the queries with a judgement in this half, and the judgements.

    Raises:
        DataError: if a row has no id or text, an id occurs twice, a judgement names an unknown id, or a query
            has no relevant document.
    """
    judgements = _read_judgements(eval_set, split, faults)
    texts = _read_texts(queries, media, faults, titled=False)
    documents = _read_texts(corpus, media, faults, titled=True)
    grades: dict[str, dict[str, int]] = {}
    for where, (query, document, grade) in judgements:
        if query not in texts and not faults.hidden:
            faults.add(
                f"{where}: there is no query '{query}'; remove the judgement, or add the query"
            )
        if document not in documents and not faults.hidden:
            faults.add(
                f"{where}: there is no document '{document}'; remove the judgement, or add the document"
            )
        if grades.setdefault(query, {}).setdefault(document, grade) != grade:
            faults.add(
                f"{where}: '{document}' was given another grade for '{query}' before; keep one of "
                "the lines"
            )
    faults.require_none()
    names = list(grades)
    names = [names[i] for i in sample_rows(len(names), limit, eval_set.name)]
    relevant = {name: grades[name] for name in names}
    if limit is not None:
        documents = reduce_corpus(documents, relevant, limit, eval_set.name)
    return RetrievalData(documents, {name: texts[name] for name in names}, relevant)


def reduce_corpus(
    documents: Mapping[str, str],
    relevant: Mapping[str, Mapping[str, int]],
    limit: int,
    name: str,
) -> dict[str, str]:
    """Return all judged documents, and of the other documents an even sample of `limit`."""
    needed = {document for grades in relevant.values() for document in grades}
    other_documents = sorted(
        (d for d in documents if d not in needed), key=lambda d: even_place(name, d)
    )
    names = needed.union(other_documents[:limit])
    return {document: text for document, text in documents.items() if document in names}


def find_judgement_file(eval_set: EvalSet, split: str) -> Path:
    """Return the file with the judgements of one half.

    Raises:
        DataError: if there is none.
    """
    file_name = "qrels.tsv" if split == "test" else f"qrels_{split}.tsv"
    for path in (eval_set.folder / file_name, eval_set.folder / "qrels" / f"{split}.tsv"):
        if path.is_file():
            return path
    where = f"{eval_set.where}: " if eval_set.where else ""
    raise DataError(
        f"{where}{format_path(eval_set.folder)} has no {file_name} with the judgements of its {split} half"
    )


def _read_judgements(eval_set: EvalSet, split: str, faults: SetFaults) -> list[Judgement]:
    """Return the judgements of one half: `file:line`, (query, document, grade).

    Faults are lines that cannot be read, and queries of the test or dev half without a grade above 0, so that
    each model's score would be 0.

    Raises:
        DataError: if there is no file with them, or no judgement in it.
    """
    path = find_judgement_file(eval_set, split)
    judgements = []
    for line, text in read_text_lines(path):
        cells = text.split("\t")
        grade = _GRADE.fullmatch(cells[-1])
        if not text.strip() or (line == 1 and not re.search(r"\d", cells[-1])):
            continue
        where = f"{format_path(path)}:{line}"
        if len(cells) != 3 or grade is None:
            faults.add(f"{where}: expected query, document and a whole number between tabs")
            continue
        judgements.append((where, (cells[0], cells[1], int(grade[1]))))
    if not judgements:
        faults.require_none()
        raise DataError(f"{format_path(path)}: there are no judgements")
    if split in get_args(Split):
        seen = {query for _, (query, _, grade) in judgements if grade > 0}
        for where, (query, _, _) in judgements:
            if query not in seen:
                seen.add(query)
                faults.add(
                    f"{where}: no document has a grade above 0 for the query '{query}', so that nothing "
                    "could be right; remove its lines, or correct them"
                )
    return judgements


def _read_texts(
    rows: PlacedRows, media: MediaValues, faults: SetFaults, *, titled: bool
) -> dict[str, str]:
    """Return texts by id."""
    texts: dict[str, str] = {}
    for where, row in rows:
        name = row.get("_id")
        if isinstance(name, bool) or not isinstance(name, str | int):
            faults.add(
                f"{where}: expected _id and text (columns: {', '.join(row)}); an _id is text or a "
                "whole number",
                hides=True,
            )
            continue
        if str(name) in texts:
            faults.add(f"{where}: the id '{name}' was given before; ids are unique")
        texts.setdefault(str(name), "")
        with faults.collect():
            columns = row if titled else {key: row[key] for key in row if key != "title"}
            texts[str(name)] = parse_document(where, columns, media).join()
    return texts
