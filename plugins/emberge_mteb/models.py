"""Models as mteb calls them: by their kind of embedding, behind one of mteb's interfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from emberge import Backbone, CheckpointError, Encoder, MediaKind, Model, Workspace

from emberge_mteb.task_texts import Prompts, TaskTexts

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import TextEmbedder
    from numpy.typing import NDArray
    from torch import Tensor

    Matrix = NDArray[np.float32]

Embed: TypeAlias = "Callable[[Sequence[str], str], Matrix]"
"""Function that returns embeddings [texts, dimension] of texts with a prompt before them."""
ScorePairs: TypeAlias = "Callable[[Sequence[str], Sequence[str], str], Matrix]"
"""Function that returns the scores [n] of queries and documents, each query with a prompt before it."""

_SIMILARITIES = ("cosine", "dot", "euclidean")  # what mteb ranks by
_LEAST_LENGTH = 1e-30  # below it a row is one of zeros, which stays so
_REMEMBERED_BYTES = 256 << 20  # bytes of embeddings kept for texts that come again
_DOCUMENTS_AT_ONCE = 1024  # documents whose sparse or token vectors are in memory at once
_BLOCK_TEXTS = 32  # texts of each side that are compared at once


@dataclass(frozen=True)
class ModelOptions:
    """Options by which a model is loaded and its texts are embedded."""

    backbone: Backbone
    prompt: str | None = None
    max_length: int | None = None
    token_budget: int | None = None
    dtype: str = "float32"


def load_model(
    model: Model, options: ModelOptions, media: Path, workspace: Workspace
) -> VectorModel | SearchModel | Reranker:
    """Return a model as mteb calls it; media of tasks are kept below `media`.

    Raises:
        CheckpointError: if the model is an adapter.
    """
    from emberge.encoding import TextEmbedder
    from emberge.model_folder import read_settings

    if model.adapter is not None:
        raise CheckpointError(
            f"{model.name}: an adapter is scored on its base; open it with whole_model first"
        )

    def show_progress(done: int, total: int, unit: str) -> None:
        """Note how many texts the running call has embedded; the number of calls that follow is unknown."""
        workspace.progress(0, 1, note=f"{done:,} of {total:,} {unit}")

    encoder = options.backbone.load(
        model.folder, device=workspace.machine.device, dtype=options.dtype
    )
    settings = read_settings(model.folder)
    own_prompts = dict(encoder.prompts)
    default_prompt = own_prompts.get(settings.get("default_prompt_name") or "", "")
    texts = TaskTexts(Prompts(options.prompt, own_prompts, default_prompt), media)
    kinds = options.backbone.describe(model.folder).media
    meta = build_model_meta(model.name, model.fingerprint, kinds)
    if encoder.similarity.kind == "pair_score":
        return Reranker(
            _score_pairs(model, encoder, options, workspace, show_progress), texts, meta
        )
    embedder = TextEmbedder(
        encoder, token_budget=options.token_budget, progress=show_progress, model=model.name
    )
    if encoder.similarity.kind != "vector":
        return SearchModel(embedder, options.max_length, texts, meta)
    similarity = settings.get("similarity_fn_name")
    return VectorModel(
        lambda batch, prompt: embedder.embed(batch, prompt=prompt, max_length=options.max_length),
        texts,
        meta,
        similarity=similarity if similarity in _SIMILARITIES else "cosine",
    )


def _score_pairs(
    model: Model,
    encoder: Encoder,
    options: ModelOptions,
    workspace: Workspace,
    progress: Callable[[int, int, str], None],
) -> ScorePairs:
    """Return a reranker's function that scores pairs, whose scores are kept in OUT's store."""
    from emberge_encoder import EmbeddingStore

    # Other steps name a model without its dtype if it computes in float32.
    computed = "" if options.dtype == "float32" else f" {options.dtype}"
    scores = EmbeddingStore(
        workspace.store,
        encoder,
        model_key=f"{model.fingerprint} {options.backbone!r}{computed}",
        token_budget=options.token_budget,
        progress=progress,
        model_name=model.name,
    )
    return lambda queries, documents, prompt: scores.embed_pairs(
        queries, documents, prompt=prompt, max_length=options.max_length
    )[:][:, 0]


def build_model_meta(name: str, fingerprint: str, kinds: Sequence[MediaKind] = ()) -> Any:
    """Return mteb's facts of a model, which reads texts and these kinds of media."""
    from mteb.models.model_meta import ModelMeta

    return ModelMeta.create_empty(
        {"name": f"emberge/{name}", "revision": fingerprint, "modalities": ["text", *kinds]}
    )


def _find_side(prompt_type: Any) -> str | None:
    return None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))


class VectorModel:
    """Implementation of mteb's `EncoderProtocol` by a function that gives one vector a text.

    A text that is repeated with the same prompt, in one task or in the next, is embedded once. With a size,
    embeddings are cut to it and scaled to length one (Kusupati et al., 2022, arXiv:2205.13147).
    """

    def __init__(
        self, embed: Embed, texts: TaskTexts, meta: Any, *, similarity: str = "cosine"
    ) -> None:
        self._embed = embed
        self._texts = texts
        self._similarity = similarity
        self._rows: dict[tuple[str, str], Matrix] = {}
        self._size: int | None = None
        self.mteb_model_meta = meta

    def prepare(self, task: str, placeholders: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's name, `instruction` and `prompt`, and the size of embeddings that is scored.

        If a task is scored at several sizes, all its embeddings are kept for the next size.
        """
        if task != self._texts.task and size is not None:
            self._forget()
        self._texts.prepare(task, placeholders)
        self._size = size

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Matrix:
        """Return embeddings [inputs, dimension] of a loader's batches, in order, cut to the task's size."""
        import numpy as np

        prompt = self._texts.find_prompt(_find_side(prompt_type), task_metadata)
        rows = self._embed_new(self._texts.read_texts(inputs), prompt)
        if self._size is None:
            return rows
        cut = rows[:, : self._size]
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        units: Matrix = cut / np.maximum(lengths, np.float32(_LEAST_LENGTH))
        return units

    def _embed_new(self, texts: Sequence[str], prompt: str) -> Matrix:
        """Return embeddings; texts that were embedded with this prompt are remembered."""
        import numpy as np

        if self._size is None:
            self._forget()
        new_texts = [text for text in dict.fromkeys(texts) if (prompt, text) not in self._rows]
        if new_texts:
            rows = np.asarray(self._embed(new_texts, prompt), dtype=np.float32)
            self._rows.update(zip(((prompt, text) for text in new_texts), rows, strict=True))
        return np.stack([self._rows[prompt, text] for text in texts])

    def _forget(self) -> None:
        """Forget all embeddings if they are too many to be kept for other tasks."""
        if sum(row.nbytes for row in self._rows.values()) > _REMEMBERED_BYTES:
            self._rows.clear()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return similarities of all pairs, by the similarity function that the model's config names."""
        from mteb.models.model_meta import ScoringFunction
        from mteb.similarity_functions import select_similarity

        return select_similarity(embeddings1, embeddings2, ScoringFunction(self._similarity))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return similarities row by row."""
        from mteb.models.model_meta import ScoringFunction
        from mteb.similarity_functions import select_pairwise_similarity

        function = ScoringFunction(self._similarity)
        return select_pairwise_similarity(embeddings1, embeddings2, function)


class SearchModel:
    """Implementation of mteb's `SearchProtocol` for sparse vectors and vectors of tokens.

    mteb's own search embeds the documents in blocks and compares them by the encoder's similarity.
    """

    def __init__(
        self, embedder: TextEmbedder, max_length: int | None, texts: TaskTexts, meta: Any
    ) -> None:
        from mteb.models.search_wrappers import SearchEncoderWrapper

        self._embedder = embedder
        self._max_length = max_length
        self._texts = texts
        self._compare = embedder.encoder.similarity
        self.mteb_model_meta = meta
        search = SearchEncoderWrapper(self, corpus_chunk_size=_DOCUMENTS_AT_ONCE)
        self.index, self.search = search.index, search.search

    def prepare(self, task: str, placeholders: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's name, `instruction` and `prompt`."""
        self._texts.prepare(task, placeholders)

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> list[Tensor]:
        """Return the embedding of each of a loader's texts: a sparse row, or vectors [tokens, dimension]."""
        side = _find_side(prompt_type)
        tokens = self._embedder.encoder.tokenise(
            self._texts.read_texts(inputs),
            prompt=self._texts.find_prompt(side, task_metadata),
            max_length=self._max_length,
            queries=side == "query",
        )
        by_place: dict[int, Tensor] = {}
        for places, embeddings in self._embedder.embed_chunks(tokens):
            prepared = self._compare.prepared(embeddings)
            if self._compare.kind == "sparse":
                prepared = prepared.to_sparse()
            by_place |= {place: prepared[row] for row, place in enumerate(places.tolist())}
        return [by_place[place] for place in range(len(by_place))]

    def similarity(self, queries: Any, documents: Any) -> Tensor:
        """Return the scores [queries, documents] of all pairs, compared in blocks of texts."""
        import torch

        rows = [
            torch.cat(
                [
                    self._compare.table(query_block, block)
                    for block in self._stack_blocks(documents)
                ],
                dim=1,
            )
            for query_block in self._stack_blocks(queries)
        ]
        return torch.cat(rows).cpu()

    def _stack_blocks(self, embeddings: Any) -> list[Tensor]:
        """Return embeddings as dense tensors [texts, *e] of a few texts each."""
        import torch

        rows = [embeddings[row] for row in range(len(embeddings))]
        blocks = [rows[at : at + _BLOCK_TEXTS] for at in range(0, len(rows), _BLOCK_TEXTS)]
        if self._compare.kind == "sparse":
            return [torch.stack(block).to_dense() for block in blocks]
        return [torch.nn.utils.rnn.pad_sequence(block, batch_first=True) for block in blocks]


class Reranker:
    """Implementation of mteb's `CrossEncoderProtocol`; mteb pairs each query with its candidates."""

    def __init__(self, score_pairs: ScorePairs, texts: TaskTexts, meta: Any) -> None:
        self._score_pairs = score_pairs
        self._texts = texts
        self.mteb_model_meta = meta

    def prepare(self, task: str, placeholders: Mapping[str, str], size: int | None = None) -> None:
        """Set the next task's name, `instruction` and `prompt`."""
        self._texts.prepare(task, placeholders)

    def predict(self, inputs1: Any, inputs2: Any, *, task_metadata: Any, **_: Any) -> Matrix:
        """Return the scores [n] of queries with documents, of two loaders of equal length."""
        queries, documents = self._texts.read_texts(inputs1), self._texts.read_texts(inputs2)
        return self._score_pairs(
            queries, documents, self._texts.find_prompt("query", task_metadata)
        )
