"""Evaluation sets: their files, and in memory their texts, labels and judgements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emberge import AnyNumber, Columns, TaskKind
from emberge.contracts import Domain, TextRole


@dataclass(frozen=True, kw_only=True)
class EvalRows:
    """The files of an evaluation set of rows in the format of training sets.

    `documents` are further documents of a retrieval set. `fitted` are labelled rows on which a classifier is
    fitted; without them half of the rows at `path` is used for that.
    """

    path: Path
    columns: Columns = field(default_factory=Columns)
    documents: Path | None = None
    fitted: Path | None = None


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """One evaluation set: a folder with both parts in the layout of its task, or a file of `rows`.

    `prompt` is the text put before a query (before every text of a `symmetric` set), by default made from
    `instruction`, which describes the task. `score_range` is the lowest and highest gold score of an sts set.
    `where` is `file:line` of the set's entry. `folder` is that of the rows' file if the set has `rows`, which
    have no parts: they are all read, whichever part is asked for.
    """

    name: str
    folder: Path = Path()
    task: TaskKind
    language: str = "en"
    symmetric: bool = True
    domain: Domain | None = None
    metric: str | None = None
    instruction: str = ""
    prompt: str = ""
    score_range: tuple[AnyNumber, AnyNumber] | None = None
    where: str = ""
    rows: EvalRows | None = None

    def __post_init__(self) -> None:
        low, high = self.score_range or (0.0, 1.0)
        if not low < high:
            raise ValueError("score_range is [lowest, highest]")

    def list_files(self) -> list[tuple[str, Path]]:
        """Return the set's files, sorted, each after a name that does not depend on where the set is."""
        if self.rows is None:
            files = sorted(path for path in self.folder.rglob("*") if path.is_file())
            return [(path.relative_to(self.folder).as_posix(), path) for path in files]
        named_paths = vars(self.rows).items()
        return [
            (f"{name} {path.name}", path)
            for name, path in named_paths
            if isinstance(path, Path) and path.is_file()
        ]


@dataclass(frozen=True, slots=True)
class RetrievalData:
    """Texts by id and judgements: `relevant[query][document]` is a grade, 0 for judged irrelevant.

    `corpus` has each document's title and text, joined by a space. `queries` has only queries with a
    judgement.
    """

    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class PairData:
    """Pairs of texts with gold scores in 0 to 1 (0 or 1 for pair classification)."""

    texts1: Sequence[str]
    texts2: Sequence[str]
    scores: Sequence[float]


@dataclass(frozen=True, slots=True)
class ClassificationData:
    """Labelled texts to fit a classifier on frozen embeddings, and further labelled texts to test it."""

    train_texts: Sequence[str]
    train_labels: Sequence[str]
    test_texts: Sequence[str]
    test_labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class ClusteringData:
    """Texts and the cluster each belongs to."""

    texts: Sequence[str]
    labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class RerankingData:
    """Queries, each with its relevant texts, which should be ranked first, and its other texts."""

    queries: Sequence[str]
    positives: Sequence[Sequence[str]]
    negatives: Sequence[Sequence[str]]


EvalData = RetrievalData | PairData | ClassificationData | ClusteringData | RerankingData


def list_eval_texts(data: EvalData) -> Iterator[tuple[TextRole, str]]:
    """Yield each scored text as a query or a document; texts that only fit a classifier are left out."""
    match data:
        case RetrievalData():
            yield from (("query", text) for text in data.queries.values())
            yield from (("document", text) for text in data.corpus.values())
        case RerankingData():
            yield from (("query", text) for text in data.queries)
            for side in (data.positives, data.negatives):
                yield from (("document", text) for texts in side for text in texts)
        case PairData():
            yield from (("query", text) for text in (*data.texts1, *data.texts2))
        case ClassificationData():
            yield from (("query", text) for text in data.test_texts)
        case ClusteringData():
            yield from (("query", text) for text in data.texts)
