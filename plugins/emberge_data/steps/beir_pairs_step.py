"""The `beir_pairs` step: training pairs of a folder in BEIR's layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    DataError,
    DataRef,
    Preflight,
    Problem,
    Reader,
    Step,
    Workspace,
)
from emberge.contracts import DataOrigin, to_json

from emberge_data.evaluation.eval_set import EvalSet, RetrievalData

# Part of the judgements that is read: `qrels/train.tsv`.
_JUDGEMENTS = "train"


@dataclass(frozen=True, kw_only=True)
class BeirPairs(Step):
    """Training pairs of a folder in the layout of BEIR: `corpus`, `queries` and `qrels/train.tsv`.

    Every query with a relevant document (Thakur et al., 2021, arXiv:2104.08663) becomes a row: its positives
    are the documents with a grade above 0, titles in front, and its negatives those with the grade 0. Queries
    without a relevant document are left out. Documents without a judgement are in no row; mining finds
    negatives among them: `mine_hard_negatives: {data: $pairs, corpus: …}`.

    Example:
        pairs:
          beir_pairs: ./scifact
        parts:
          split: {data: $pairs}
    """

    produces: ClassVar[ArtifactKind] = "data"

    path: DataRef
    """Folder with the files of documents and queries, and of their judgements."""
    source: DataOrigin = field(default_factory=DataOrigin)
    """Origin of the folder's data, which the result names."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge_data.evaluation.read_eval_sets import explain_missing_part

        folder = context.data(self.path)
        if folder is None:
            return
        missing = explain_missing_part(_describe_folder(folder), _JUDGEMENTS, context.readers)
        if missing is not None:
            yield context.problem(missing, "path")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.written_sets import write_entries, write_json_rows

        folder = workspace.data(self.path)
        rows = _read_pairs(folder, workspace.readers)
        name = folder.resolve().name
        write_json_rows(workspace.folder / "pairs.jsonl", rows)
        entry: dict[str, Any] = {"name": name, "file": "pairs.jsonl", "task": "retrieval"}
        entry |= {
            "rows": len(rows),
            **({"source": facts} if (facts := to_json(self.source)) else {}),
        }
        write_entries(workspace.folder, {"train": [entry]})
        return Artifact(kind="data", size=len(rows))


def _describe_folder(folder: Path) -> EvalSet:
    return EvalSet(name=folder.resolve().name, folder=folder, task="retrieval")


def _read_pairs(folder: Path, readers: Sequence[Reader]) -> list[Mapping[str, Any]]:
    """Return the rows of all queries with a relevant document."""
    from emberge_data.evaluation.read_eval_sets import load_eval_set

    loaded = load_eval_set(_describe_folder(folder), readers=readers, split=_JUDGEMENTS)
    assert isinstance(loaded, RetrievalData)
    rows: list[Mapping[str, Any]] = []
    for query, grades in loaded.relevant.items():
        positives = [loaded.corpus[document] for document, grade in grades.items() if grade > 0]
        negatives = [loaded.corpus[document] for document, grade in grades.items() if grade <= 0]
        if positives:
            rows.append({"query": loaded.queries[query], "pos": positives, "neg": negatives})
    if not rows:
        raise DataError(f"{folder}: no query of its training judgements has a relevant document")
    return rows
