"""Facts of a SentenceTransformers folder for its users: how text becomes an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import (
    Checkpoint,
    TextLimit,
    find_class_code,
    read_settings,
    read_trunk_settings,
)
from emberge.results import read_record
from emberge_encoder import CrossEncoderFacts, Layout, is_static_model, read_static_dimension

# The names of sentence-transformers.
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan", "maxsim")
_KINDS_OF_INPUT = ("text", "image", "audio", "video")


@dataclass(frozen=True, slots=True)
class ModelKind:
    """Class of sentence-transformers, with the hub's tags and a readable name for such a model.

    `sentence` says what such a model does, and `lines` are the code after `model = …` in a snippet.
    Both are empty for the embedder of texts, whose card says more.
    """

    class_name: str
    pipeline: str
    tags: tuple[str, ...]
    noun: str
    sentence: str = ""
    lines: tuple[str, ...] = ()
    embeds_texts: bool = False
    """True if a model of this kind embeds each text into one vector."""


_SNIPPET_LINES = (
    'queries = model.encode_query(["how to sort a list"])',
    'documents = model.encode_document(["sorted(items)", "open(path)"])',
    "print(model.similarity(queries, documents))",
)
EMBEDDER = ModelKind(
    "SentenceTransformer",
    "sentence-similarity",
    ("feature-extraction", "sentence-similarity"),
    "text-embedding model",
    embeds_texts=True,
)
_KIND_BY_CLASS = {
    "SentenceTransformer": EMBEDDER,
    "SparseEncoder": ModelKind(
        "SparseEncoder",
        "feature-extraction",
        ("feature-extraction", "sparse-encoder", "sparse"),
        "sparse text-embedding model",
        "It gives a text a weight for each of a few words; texts that mean similar things share words.",
        _SNIPPET_LINES,
    ),
    "MultiVectorEncoder": ModelKind(
        "MultiVectorEncoder",
        "sentence-similarity",
        ("feature-extraction", "multi-vector", "ColBERT", "late-interaction"),
        "multi-vector text-embedding model",
        "It turns each token of a text into a vector; a document fits a query whose vectors meet theirs.",
        _SNIPPET_LINES,
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
_CLASS_BY_MODULE = {
    "SpladePooling": "SparseEncoder",
    "SparseAutoEncoder": "SparseEncoder",
    "SparseStaticEmbedding": "SparseEncoder",
    "MultiVectorMask": "MultiVectorEncoder",
    "LogitScore": "CrossEncoder",
}


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Dimension, longest text in tokens, pooling, similarity, and all prompts that are not empty.

    A fact that no file states is None.
    """

    architecture: str | None = None
    dimension: int | None = None
    max_length: int | None = None
    reads_any_length: bool = False
    """True if texts of any length are read whole."""
    pooling: tuple[str, ...] = ()
    normalised: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    similarity: str = "cosine"
    model_kind: ModelKind = EMBEDDER
    code: str = ""
    """Code that a user must trust to load the model, from `auto_map`; "" for a class of transformers."""
    reads: tuple[str, ...] = ("text",)
    """Kinds of input, in the words of sentence-transformers: text, image, audio."""

    @property
    def code_file(self) -> str:
        """Name of the file of `code`."""
        return f"{self.code.rpartition('--')[2].partition('.')[0]}.py"

    @property
    def code_repository(self) -> str:
        """Repository of `code` on the hub; "" if it is in the model's folder."""
        return self.code.rpartition("--")[0]

    @property
    def snippet(self) -> tuple[str, ...]:
        """Lines of code for queries and documents; empty for a model with one kind of text."""
        asymmetric = self.prompts.get("query") or self.prompts.get("document")
        return self.model_kind.lines or (_SNIPPET_LINES if asymmetric else ())


def read_anatomy(folder: Path) -> Anatomy:
    """Return the facts in a model folder's configs; a config that cannot be read is treated as empty."""
    try:
        layout = Layout.read(folder)
        longest = TextLimit.read(layout.trunk_folder).longest
    except CheckpointError:
        return _describe_other(folder)
    config = read_record(layout.trunk_folder / "config.json")
    code = find_class_code(config)
    modalities = read_trunk_settings(layout.trunk_folder).get("modality_config") or ()
    return Anatomy(
        architecture=_name_architecture(config),
        dimension=_find_dimension(folder, [module.path for module in layout.modules], config),
        max_length=longest,
        pooling=layout.pooling,
        normalised=any(module.kind == "Normalize" for module in layout.modules),
        prompts={name: text for name, text in layout.prompts.items() if text},
        similarity=_read_similarity(read_settings(folder)),
        model_kind=find_model_kind(folder),
        code=code.name if code is not None else "",
        reads=tuple(kind for kind in _KINDS_OF_INPUT if kind in modalities) or ("text",),
    )


def _describe_other(folder: Path) -> Anatomy:
    """Return the facts of a model that is no transformer with pooling: a static model's, or its class's."""
    with suppress(CheckpointError):
        if is_static_model(folder):
            return _describe_static(folder)
    config = read_record(folder / "config.json")
    return Anatomy(architecture=_name_architecture(config), model_kind=find_model_kind(folder))


def _describe_static(folder: Path) -> Anatomy:
    """Return the facts of a static model: the mean of a vector for each token, at any length."""
    settings = read_settings(folder)
    prompts = settings.get("prompts")
    return Anatomy(
        architecture="StaticEmbedding",
        dimension=read_static_dimension(folder),
        reads_any_length=True,
        pooling=("mean",),
        normalised=any(module.kind == "Normalize" for module in Checkpoint(folder).modules),
        prompts={k: v for k, v in prompts.items() if v} if isinstance(prompts, Mapping) else {},
        similarity=_read_similarity(settings),
    )


def _read_similarity(settings: Mapping[str, Any]) -> str:
    """Return the similarity that settings name; "unknown" for other words, as configs are untrusted."""
    named = settings.get("similarity_fn_name") or "cosine"
    return named if named in _SIMILARITIES else "unknown"


def _name_architecture(config: Mapping[str, Any]) -> str | None:
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    return str(config["model_type"]) if "model_type" in config else None


def _find_dimension(folder: Path, modules: list[str], config: Mapping[str, Any]) -> int | None:
    """Return the dimension that the last module states, else the transformer's."""
    for path in reversed(modules):
        module_config = read_record(folder / path / "config.json")
        for key in ("out_features", "word_embedding_dimension", "embedding_dimension"):
            if isinstance(module_config.get(key), int):
                return int(module_config[key])
    size = config.get("hidden_size")
    return size if isinstance(size, int) else None


def find_model_kind(folder: Path) -> ModelKind:
    """Return the kind of model that a folder's configs name; an embedder where they name none."""
    try:
        settings, modules = read_settings(folder), Checkpoint(folder).modules
        # A folder with modules says so itself.
        is_reranker = not modules and CrossEncoderFacts.read(folder).is_one
    except CheckpointError:
        settings, modules, is_reranker = {}, (), False
    stated = settings.get("model_type")
    if isinstance(stated, str) and stated in _KIND_BY_CLASS:
        return _KIND_BY_CLASS[stated]
    architectures = read_record(folder / "config.json").get("architectures") or [""]
    is_pylate = any("pylate." in module.type for module in modules)
    if stated == "ColBERT" or "HF_ColBERT" in architectures or is_pylate:
        return _KIND_BY_CLASS["MultiVectorEncoder"]
    default = "CrossEncoder" if is_reranker else "SentenceTransformer"
    classes = (_CLASS_BY_MODULE.get(module.kind) for module in modules)
    return _KIND_BY_CLASS[next(filter(None, classes), default)]
