"""Retrieval sets in the layout of BEIR (Thakur et al., 2021, arXiv:2104.08663)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from emberge.contracts import MEDIA_KINDS, plain_text
from emberge.data.entry import EvalSet
from emberge.data.evaluation.eval_data import RetrievalData
from emberge.data.file_summary import shown
from emberge.data.rows.line_files import read_text_lines
from emberge.data.rows.media_values import MediaValues
from emberge.data.sampling import place, sample_rows
from emberge.errors import DataError
from emberge.wording import printable

_GRADE = re.compile(r"-?[0-9]{1,9}")
Placed = Iterable[tuple[str, Mapping[str, Any]]]


def read_retrieval(
    eval_set: EvalSet,
    *,
    corpus: Placed,
    queries: Placed,
    split: str,
    limit: int | None,
    media: MediaValues,
) -> RetrievalData:
    """Join documents, the queries that have a judgement in this half, and the judgements.

    Raises:
        DataError: for a row without id or text, an id given twice, or a judgement of something unknown.
    """
    path = _judgement_file(eval_set, split)
    judged = _judgements(path)
    texts = _texts(queries, media, titled=False)
    documents = _texts(corpus, media, titled=True)
    relevant: dict[str, dict[str, int]] = {}
    for line, (query, document, grade) in judged:
        for kind, known, name in (("query", texts, query), ("document", documents, document)):
            if name not in known:
                raise DataError(
                    f"{shown(path)}:{line}: there is no {kind} '{printable(name, 80)}'; remove the line"
                )
        if relevant.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{shown(path)}:{line}: '{printable(document, 80)}' was given another grade for "
                f"'{printable(query, 80)}' before; keep one of the lines"
            )
    names = list(relevant)
    names = [names[i] for i in sample_rows(len(names), limit, eval_set.name)]
    relevant = {name: relevant[name] for name in names}
    if limit is not None:
        documents = _thinned(documents, relevant, limit, eval_set.name)
    return RetrievalData(documents, {name: texts[name] for name in names}, relevant)


def _thinned(
    documents: dict[str, str], relevant: Mapping[str, Mapping[str, int]], limit: int, name: str
) -> dict[str, str]:
    needed = {document for grades in relevant.values() for document in grades}
    others = sorted((d for d in documents if d not in needed), key=lambda d: place(name, d))
    kept = needed.union(others[:limit])
    return {document: text for document, text in documents.items() if document in kept}


def _judgement_file(eval_set: EvalSet, split: str) -> Path:
    named = "qrels.tsv" if split == "test" else f"qrels_{split}.tsv"
    for path in (eval_set.folder / named, eval_set.folder / "qrels" / f"{split}.tsv"):
        if path.is_file():
            return path
    raise DataError(
        f"{shown(eval_set.folder)} has no {named} with the judgements of its {split} half"
    )


def _judgements(path: Path) -> list[tuple[int, tuple[str, str, int]]]:
    found = []
    for line, text in read_text_lines(path):
        cells = text.split("\t")
        if not text.strip() or (line == 1 and cells[-1] == "score"):
            continue
        if len(cells) != 3 or not _GRADE.fullmatch(cells[2].strip()):
            raise DataError(
                f"{shown(path)}:{line}: expected query, document and a whole number between tabs"
            )
        found.append((line, (cells[0], cells[1], int(cells[2]))))
    if not found:
        raise DataError(f"{shown(path)}: there are no judgements")
    return found


def _texts(rows: Placed, media: MediaValues, *, titled: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for where, row in rows:
        name, text = row.get("_id"), _text(where, row, media)
        title = row.get("title") if titled else None
        title = "" if title is None else title
        if not isinstance(text, str) or not isinstance(title, str):
            there = printable(", ".join(row), 200)
            raise DataError(
                f"{where}: expected _id and text (columns: {there}); image or audio may be in "
                "the text's place"
            )
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise DataError(
                f"{where}: the row needs an _id that is text or a whole number, not {printable(name, 40)}"
            )
        if str(name) in found:
            raise DataError(
                f"{where}: the id '{printable(name, 80)}' was given before; ids are unique"
            )
        joined = f"{plain_text(title)} {text}".strip()
        if not joined:
            raise DataError(f"{where}: the text is empty or only white space; fill or remove it")
        found[str(name)] = joined
    return found


def _text(where: str, row: Mapping[str, Any], media: MediaValues) -> Any:
    """Return a row's text with references to its media: those of a text column, or of others before it."""
    text = row.get("text")
    given: dict[str, Any] = {
        kind: row[kind] for kind in MEDIA_KINDS if row.get(kind) not in (None, "")
    }
    try:
        if isinstance(text, Mapping):
            return media.input(text, "text")
        if given:
            return media.input(
                given | ({"text": text} if text is not None else {}), next(iter(given))
            )
    except DataError as error:
        raise DataError(f"{where}: {printable(error)}") from None
    return plain_text(text) if isinstance(text, str) else text
