"""Retrieval sets from rows: queries are the distinct anchors, positives are relevant, all is searched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emberge.data.evaluation.beir_files import reduce_corpus
from emberge.data.evaluation.eval_data import RetrievalData
from emberge.data.evaluation.searched_documents import SearchedDocuments
from emberge.data.evaluation.set_faults import SetFaults
from emberge.data.rows.row_parser import Row
from emberge.data.sampling import sample_rows
from emberge.errors import DataError


def join_rows(
    rows: Iterable[tuple[str, Row]],
    documents: SearchedDocuments,
    faults: SetFaults,
    *,
    name: str,
    limit: int | None,
) -> RetrievalData:
    """Return the retrieval set of rows, each after its `file:line`, and of further documents.

    If the first positive is the id of a document, positives and negatives are ids. `limit` keeps a sample of
    the queries, which depends on the set's `name`, the documents that belong to them, and as many others.

    Raises:
        DataError: if there is no document of an id; has a line for each fault.
    """
    queries: dict[str, dict[int, int]] = {}
    by_id: bool | None = None
    for where, row in rows:
        if by_id is None:
            by_id = row.positives[0] in documents.number_by_id
        judged = queries.setdefault(row.anchor, {})
        for text in row.positives:
            with faults.collect():
                judged[_find_document(documents, text, by_id, where)] = 1
        for text in row.negatives:
            with faults.collect():
                _find_document(documents, text, by_id, where)
    faults.require_none()
    corpus = {f"d{number}": text for number, text in enumerate(documents.texts)}
    anchors = list(queries)
    kept_numbers = sample_rows(len(anchors), limit, name)
    relevant: Mapping[str, Mapping[str, int]] = {
        f"q{number}": {
            f"d{document}": grade for document, grade in queries[anchors[number]].items()
        }
        for number in kept_numbers
    }
    if limit is not None:
        corpus = reduce_corpus(corpus, relevant, limit, name)
    return RetrievalData(corpus, {f"q{n}": anchors[n] for n in kept_numbers}, relevant)


def _find_document(documents: SearchedDocuments, text: str, by_id: bool, where: str) -> int:
    """Return the number of the document with this text or id; a new text is added to the documents."""
    if not by_id:
        number = documents.number_by_text.get(text.strip())
        return documents.add(text) if number is None else number
    if text not in documents.number_by_id:
        raise DataError(
            f"{where}: there is no document '{text}' in {documents.place}, and the first row "
            "names its document by an id; correct the id, or add the document"
        )
    return documents.number_by_id[text]
