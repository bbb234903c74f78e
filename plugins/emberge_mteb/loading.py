"""Loading of a model for mteb: by its kind of embedding, behind one of mteb's interfaces for models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Backbone, CheckpointError, Encoder, Model, Workspace

from emberge_mteb.kind_search import KindSearch, Reranker
from emberge_mteb.model import SIMILARITIES, MtebModel, Prompts, TaskTexts

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import TextEmbedder
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ModelLoader:
    """Loader of one model; media of tasks are kept below `media`."""

    model: Model
    backbone: Backbone
    workspace: Workspace
    media: Path
    prompt: str | None
    max_length: int | None
    token_budget: int | None
    dtype: str

    def load(self) -> Encoder:
        """Return the model's encoder.

        Raises:
            CheckpointError: if the model is an adapter, or its folder has problems.
        """
        folder = self.model.folder
        if self.model.adapter is not None:
            raise CheckpointError(
                f"{self.model.name}: an adapter is scored on its base; open it with whole_model first"
            )
        facts = self.backbone.describe(folder)
        if facts.problems:
            raise CheckpointError("\n".join(facts.problems))
        for warning in facts.warnings:
            self.workspace.warn(warning)
        return self.backbone.load(folder, device=self.workspace.machine.device, dtype=self.dtype)

    def wrap(self, encoder: Encoder) -> MtebModel | KindSearch | Reranker:
        """Return the encoder as mteb calls it."""
        from emberge.encoding import TextSearch
        from emberge.model_folder import read_settings

        names = {"name": self.model.name, "fingerprint": self.model.fingerprint}
        settings = read_settings(self.model.folder)
        own_prompts = dict(encoder.prompts)
        default_prompt = own_prompts.get(settings.get("default_prompt_name") or "", "")
        prompts = Prompts(self.prompt, own_prompts, default_prompt)
        texts = TaskTexts(prompts, self.media)
        if encoder.similarity.kind == "pair_score":
            return Reranker(self._score_pairs(encoder), texts, **names)
        embedder = self._build_embedder(encoder)
        if encoder.similarity.kind != "vector":
            return KindSearch(TextSearch(embedder, max_length=self.max_length), texts, **names)
        similarity = settings.get("similarity_fn_name")
        return MtebModel(
            lambda batch, prompt: embedder.embed(batch, prompt=prompt, max_length=self.max_length),
            texts,
            similarity=similarity if similarity in SIMILARITIES else "cosine",
            kinds=self.backbone.describe(self.model.folder).media,
            **names,
        )

    def _show_texts(self, done: int, total: int, unit: str) -> None:
        """Note how many texts the running call has embedded; mteb does not tell how many calls follow."""
        self.workspace.progress(0, 1, note=f"{done:,} of {total:,} {unit}")

    def _build_embedder(self, encoder: Encoder) -> TextEmbedder:
        from emberge.encoding import TextEmbedder

        return TextEmbedder(
            encoder,
            token_budget=self.token_budget,
            progress=self._show_texts,
            model=self.model.name,
        )

    def _score_pairs(
        self, encoder: Encoder
    ) -> Callable[[Sequence[str], Sequence[str], str], NDArray[np.float32]]:
        """Return a reranker's function that scores pairs, whose scores are kept in OUT's store."""
        from emberge.encoding import EmbeddingStore

        # As other steps name a model that computes in float32.
        computed = "" if self.dtype == "float32" else f" {self.dtype}"
        scores = EmbeddingStore(
            self.workspace.store,
            encoder,
            model=f"{self.model.fingerprint} {self.backbone!r}{computed}",
            token_budget=self.token_budget,
            progress=self._show_texts,
            name=self.model.name,
        )
        return lambda queries, documents, prompt: scores.embed_pairs(
            queries, documents, prompt=prompt, max_length=self.max_length
        )[:][:, 0]
