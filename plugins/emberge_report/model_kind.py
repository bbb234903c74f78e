"""Kind of model that a folder has, and so the class that opens it and its purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import read_modules, read_settings


@dataclass(frozen=True, slots=True)
class ModelKind:
    """Class of sentence-transformers, with the hub's words for such a model, and a person's.

    `lines` follow `model = …` in a snippet; without any, the model embeds texts into one vector each.
    """

    cls: str
    pipeline: str
    tags: tuple[str, ...]
    noun: str
    does: str
    lines: tuple[str, ...] = ()


_ASK = (
    'queries = model.encode_query(["how to sort a list"])',
    'documents = model.encode_document(["sorted(items)", "open(path)"])',
    "print(model.similarity(queries, documents))",
)
EMBEDDER = ModelKind(
    "SentenceTransformer",
    "sentence-similarity",
    ("feature-extraction", "sentence-similarity"),
    "text-embedding model",
    "texts that mean similar things get similar numbers",
)
_KINDS = {
    "SparseEncoder": ModelKind(
        "SparseEncoder",
        "feature-extraction",
        ("feature-extraction", "sparse-encoder", "sparse"),
        "sparse text-embedding model",
        "It gives a text a weight for each of a few words; texts that mean similar things share words.",
        _ASK,
    ),
    "MultiVectorEncoder": ModelKind(
        "MultiVectorEncoder",
        "sentence-similarity",
        ("feature-extraction", "multi-vector", "ColBERT", "late-interaction"),
        "multi-vector text-embedding model",
        "It turns each token of a text into a vector; a document fits a query whose vectors meet theirs.",
        _ASK,
    ),
    "CrossEncoder": ModelKind(
        "CrossEncoder",
        "text-ranking",
        ("cross-encoder", "reranker"),
        "reranker",
        "It reads a query and a document together and rates how well the two fit.",
        ('print(model.rank("how to sort a list", ["sorted(items)", "open(path)"]))',),
    ),
}
_BY_MODULE = {
    "SpladePooling": "SparseEncoder",
    "SparseAutoEncoder": "SparseEncoder",
    "SparseStaticEmbedding": "SparseEncoder",
    "MultiVectorMask": "MultiVectorEncoder",
    "LogitScore": "CrossEncoder",
}


def purpose_of(folder: Path) -> ModelKind:
    """Return the kind of model that a folder's configs name; an embedder where they name none."""
    try:
        named = read_settings(folder).get("model_type")
        types = [module.type for module in read_modules(folder)]
    except CheckpointError:
        named, types = None, []
    architectures = _read(folder / "config.json").get("architectures") or [""]
    by_module = [_BY_MODULE.get(type_.rpartition(".")[2]) for type_ in types]
    if isinstance(named, str) and named in _KINDS:
        return _KINDS[named]
    if named == "ColBERT" or "HF_ColBERT" in architectures or any("pylate." in t for t in types):
        return _KINDS["MultiVectorEncoder"]
    found = next((kind for kind in by_module if kind is not None), None)
    if found is None and not types and str(architectures[0]).endswith("ForSequenceClassification"):
        found = "CrossEncoder"
    return _KINDS[found] if found is not None else EMBEDDER


def _read(path: Path) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, list | Mapping) else {}
