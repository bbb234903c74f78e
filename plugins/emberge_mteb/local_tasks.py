"""Local evaluation sets as mteb's own task objects, so that mteb's evaluators give every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from emberge import TaskKind, split_parts
from emberge.contracts import list_media_kinds
from emberge.hashes import hash_texts
from emberge_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    EvalSet,
    PairData,
    RerankingData,
    RetrievalData,
    list_eval_texts,
)

# Main metric of each kind of task unless its catalogue names another, in mteb's words.
METRICS: Mapping[TaskKind, str] = {
    "retrieval": "ndcg_at_10",
    "reranking": "map_at_1000",
    "classification": "accuracy",
    "clustering": "v_measure",
    "sts": "cosine_spearman",
    "pair_classification": "cosine_ap",
}
_METRIC_WORDS = {
    "spearman": "cosine_spearman",
    "pearson": "cosine_pearson",
    "average_precision": "cosine_ap",
}
_MTEB_TASK_TYPES: Mapping[TaskKind, str] = {
    "retrieval": "Retrieval",
    "reranking": "Reranking",
    "classification": "Classification",
    "clustering": "Clustering",
    "sts": "STS",
    "pair_classification": "PairClassification",
}
_MEDIA_TASK_TYPES: Mapping[TaskKind, str] = {
    **_MTEB_TASK_TYPES,
    "retrieval": "Any2AnyRetrieval",
    "reranking": "Any2AnyReranking",
}


class SideModalities(NamedTuple):
    """Modalities of queries and of documents, at least one each."""

    queries: list[str]
    documents: list[str]

    @property
    def modalities(self) -> list[str]:
        """Modalities of both sides, each once."""
        return list(dict.fromkeys([*self.queries, *self.documents]))

    @property
    def category(self) -> str | None:
        """Mteb's code for the two sides, such as "t2i"; None if it has none."""
        from mteb.abstasks.task_metadata import TaskCategory

        letters = ["".join(name[0] for name in side) for side in self]
        category = "2".join(letters)
        return category if category in get_args(TaskCategory) else None


def find_media_sides(data: EvalData) -> SideModalities | None:
    """Return the modalities of a retrieval or reranking set; None without media and for other kinds of sets.

    Mteb gives the texts of other kinds of sets to a model unchanged, so there the texts contain references to
    media.
    """
    if not isinstance(data, RetrievalData | RerankingData):
        return None
    if not list_media_kinds(text for _, text in list_eval_texts(data)):
        return None
    if isinstance(data, RetrievalData):
        queries: Iterable[str] = data.queries.values()
        documents: Iterable[str] = data.corpus.values()
    else:
        queries = data.queries
        both = (*data.positives, *data.negatives)
        documents = (text for texts in both for text in texts)
    sides = SideModalities(_list_modalities(queries), _list_modalities(documents))
    # Without a word for the pair mteb gives each side the columns of both.
    return sides if sides.category else SideModalities(sides.modalities, sides.modalities)


def _list_modalities(texts: Iterable[str]) -> list[str]:
    """Return the modalities of one side, media first, as mteb writes its pairs."""
    text_list = list(texts)
    worded = any(isinstance(part, str) for text in text_list for part in split_parts(text))
    return [*list_media_kinds(text_list), *(["text"] if worded else [])]


def choose_main_metric(eval_set: EvalSet) -> str:
    """Return mteb's name of a set's main metric."""
    if eval_set.metric is None:
        return METRICS[eval_set.task]
    return _METRIC_WORDS.get(eval_set.metric, eval_set.metric)


def build_local_task(eval_set: EvalSet, data: EvalData, *, split: str, revision: str) -> Any:
    """Return a new mteb task with its data loaded, which scores `data` on `split`.

    A task object draws random numbers while it runs, so it must be used for one model only.
    """
    import mteb

    sides = find_media_sides(data)
    fields, dataset = _build_task_content(eval_set, data, split, sides)
    metadata = mteb.TaskMetadata(
        name=eval_set.name,
        description=f"The {split} part of {eval_set.name}, a local set.",
        dataset={"path": f"local/{eval_set.name}", "revision": revision},
        prompt=eval_set.prompt or None,
        type=_MTEB_TASK_TYPES[eval_set.task] if sides is None else _MEDIA_TASK_TYPES[eval_set.task],
        category="t2t" if sides is None else sides.category,
        modalities=["text"] if sides is None else sides.modalities,
        eval_splits=[split],
        eval_langs=["und-Zyyy"],  # the table has the set's own word for it
        main_score=choose_main_metric(eval_set),
    )
    parent = fields.pop("parent")
    kind = type(
        f"Local{_MTEB_TASK_TYPES[eval_set.task]}", (parent,), {"metadata": metadata, **fields}
    )
    task = kind()
    task.dataset = dataset
    task.data_loaded = True
    return task


def _build_task_content(
    eval_set: EvalSet, data: EvalData, split: str, sides: SideModalities | None
) -> tuple[dict[str, Any], Any]:
    """Return (the task's class and its attributes, the dataset in the layout that class reads)."""
    from mteb.abstasks import AbsTaskRetrieval

    match data:
        case RetrievalData():
            content = _build_retrieval_content(data, sides=sides)
        case RerankingData():
            content = _build_reranking_content(data, sides)
        case PairData():
            return _build_pairs_content(data, split, is_sts=eval_set.task == "sts")
        case ClassificationData():
            return _build_classification_content(data, split)
        case ClusteringData():
            return _build_clustering_content(data, split)
    return {"parent": AbsTaskRetrieval}, {"default": {split: content}}


def _build_pairs_content(data: PairData, split: str, *, is_sts: bool) -> tuple[dict[str, Any], Any]:
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskPairClassification, AbsTaskSTS

    texts = {"sentence1": list(data.texts1), "sentence2": list(data.texts2)}
    if is_sts:
        rows = Dataset.from_dict({**texts, "score": list(data.scores)})
        return {"parent": AbsTaskSTS, "min_score": 0, "max_score": 1}, DatasetDict({split: rows})
    labels = [round(score) for score in data.scores]
    rows = Dataset.from_dict({**texts, "labels": labels})
    return {"parent": AbsTaskPairClassification}, DatasetDict({split: rows})


def _build_classification_content(
    data: ClassificationData, split: str
) -> tuple[dict[str, Any], Any]:
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskClassification

    numbers = _number_labels([*data.train_labels, *data.test_labels])
    splits = {
        "train": (data.train_texts, data.train_labels),
        split: (data.test_texts, data.test_labels),
    }
    rows = {
        name: Dataset.from_dict({"text": list(texts), "label": [numbers[one] for one in labels]})
        for name, (texts, labels) in splits.items()
    }
    return {"parent": AbsTaskClassification}, DatasetDict(rows)


def _build_clustering_content(data: ClusteringData, split: str) -> tuple[dict[str, Any], Any]:
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskClustering

    numbers = _number_labels(data.labels)
    labels = [numbers[label] for label in data.labels]
    rows = Dataset.from_dict({"sentences": list(data.texts), "labels": labels})
    fields = {
        "parent": AbsTaskClustering,
        # mteb embeds 4 % of a set by default, which is meant for far larger ones.
        "max_fraction_of_documents_to_embed": None,
        "max_documents_per_cluster": min(16_384, len(data.texts)),
    }
    return fields, DatasetDict({split: rows})


def _build_retrieval_content(
    data: RetrievalData, *, sides: SideModalities | None = None, rerank: bool = False
) -> Any:
    """Return a retrieval dataset, or one to `rerank` what is judged.

    mteb orders documents with equal scores by their ids and by their order, so both are hashes here: ids and
    orders of files often tell what is relevant.
    """
    from datasets import Dataset

    ids = _hash_documents(data.corpus)
    corpus = dict(sorted((ids[name], text) for name, text in data.corpus.items()))
    relevant = {
        query: {ids[name]: grade for name, grade in data.relevant[query].items()}
        for query in data.queries
    }
    queries, documents = (["text"], ["text"]) if sides is None else sides
    return {
        "corpus": Dataset.from_dict(_build_media_columns(corpus, documents)),
        "queries": Dataset.from_dict(_build_media_columns(data.queries, queries)),
        "relevant_docs": relevant,
        "top_ranked": {q: sorted(grades) for q, grades in relevant.items()} if rerank else None,
    }


def _hash_documents(corpus: Mapping[str, str]) -> dict[str, str]:
    """Return a hash of each document's text by id; of a text that several have, with the id."""
    count = Counter(corpus.values())
    keyed = (text if count[text] == 1 else f"{text}\0{name}" for name, text in corpus.items())
    hashes = hash_texts(keyed)
    return {name: hashes[16 * n : 16 * (n + 1)].hex() for n, name in enumerate(corpus)}


def _build_reranking_content(data: RerankingData, sides: SideModalities | None) -> Any:
    """Return a reranking dataset: equal texts are one document, and candidates are ranked per query."""
    relevant = {
        f"q{row}": dict.fromkeys(negatives, 0) | dict.fromkeys(positives, 1)
        for row, (positives, negatives) in enumerate(
            zip(data.positives, data.negatives, strict=True)
        )
    }
    queries = {f"q{row}": text for row, text in enumerate(data.queries)}
    corpus = {text: text for judged in relevant.values() for text in judged}
    judged = RetrievalData(corpus, queries, relevant)
    return _build_retrieval_content(judged, sides=sides, rerank=True)


def _build_media_columns(
    texts: Mapping[str, str], modalities: Sequence[str]
) -> dict[str, list[str]]:
    """Return the columns that mteb reads; each input is whole in its side's first column."""
    first_modality, *other_modalities = modalities
    empty = {name: [""] * len(texts) for name in other_modalities}
    return {"id": list(texts), first_modality: list(texts.values()), **empty}


def _number_labels(labels: Sequence[str]) -> dict[str, int]:
    return {label: number for number, label in enumerate(sorted(set(labels)))}
