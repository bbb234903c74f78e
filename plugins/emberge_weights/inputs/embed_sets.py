"""Embedding of all sets by one model after another, members and what they are merged to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge import Backbone, Model, Workspace
from emberge.encoding import EmbeddingStore

from emberge_weights.inputs.members import Prompting, SideVectors, VectorRows, before_length_one
from emberge_weights.inputs.weight_sets import WeightSet


@dataclass(frozen=True, kw_only=True)
class SetEmbedder:
    """Embedder of sets, one model at a time; `prompt` is a template before queries."""

    sets: Sequence[WeightSet]
    backbone: Backbone
    prompt: str | None
    max_length: int | None
    workspace: Workspace

    def member(self, model: Model) -> list[SideVectors]:
        """Return the vectors of every set by a member, kept in the store that steps share."""
        work = self.workspace
        with work.whole_model(model) as folder:
            return self._embedded(folder, model.fingerprint, model.name, work.store)

    def merged(self, folder: Path, key: str, name: str) -> list[SideVectors]:
        """Return the vectors of every set by a merged model, kept until the step is done."""
        return self._embedded(folder, key, name, self.workspace.work / "vectors")

    def _embedded(self, folder: Path, key: str, name: str, kept: Path) -> list[SideVectors]:
        backbone = before_length_one(self.backbone)
        encoder = backbone.load(folder, device=self.workspace.machine.device, dtype="float32")
        store = EmbeddingStore(
            kept,
            encoder,
            model=f"{key} {backbone!r}",
            name=name,
            progress=lambda done, total, unit: self.workspace.progress(done, total, unit, name),
        )
        prompting = Prompting(self.prompt, encoder.prompts)

        def embed(one: WeightSet, texts: Sequence[str], side: str) -> VectorRows:
            prompt = prompting.of(one, side)
            return store.embed(texts, prompt=prompt, max_length=self.max_length)

        found = []
        for one in self.sets:
            queries = embed(one, one.queries, "query")
            documents = queries if one.itself else embed(one, one.documents, "document")
            found.append(SideVectors(queries, documents))
        return found
