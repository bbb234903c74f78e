"""The `static_model` step: one vector for each token of a teacher, and no transformer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    Artifact,
    Backbone,
    DataEntry,
    Expected,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
    component,
)

if TYPE_CHECKING:
    from emberge_smaller.token_vectors import StaticTable


@dataclass(frozen=True, kw_only=True)
class StaticModel(Step):
    """Make a static model: a text's embedding is the mean of its tokens' vectors, scaled to length one.

    The vectors are a teacher's embeddings of the single tokens of its vocabulary (model2vec: Tulkens and van
    Dongen, 2024), less their mean, and weighted by a / (a + p): frequent tokens count little (SIF: Arora et
    al., 2017). The probability p of a token is counted in the texts of `data`; without data it is that of
    Zipf's law, by the token's place among the words, or the single characters, of the vocabulary. Special and
    unused tokens have vectors of zeros. The vectors are of the teacher's size: a step `distil` with
    `embedding_distillation` brings texts near to the teacher's vectors of them.

    The result is a folder of sentence-transformers with a stock StaticEmbedding. Train it by a step `distil`
    with `student: {model: …}`, or by `train`.

    Example:
        static:
          static_model:
            teacher: ./boom
            data: {path: ./texts.jsonl, task: text}
    """

    produces = "model"
    loads = ("torch", "transformers")

    teacher: ModelRef
    """The model whose tokens are embedded."""
    data: tuple[DataEntry, ...] = ()
    """Texts in which tokens are counted: files, catalogues or steps that make data."""
    backbone: Backbone = component("text_encoder")
    """Backbone of the teacher."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        context.expect(Expected(is_static=True))
        folder = context.whole_model(self.teacher)
        if self.data:
            yield from check_datasets(context, self.data, show=False).problems
        if folder is not None:
            for message in self.backbone.describe(folder).problems:
                yield context.problem(message, "teacher")

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.teacher)
        with workspace.whole_model(model) as folder:
            table = self._write(folder, workspace)
        tokens, dimension = table.vectors.shape
        facts = {"tokens": tokens, "dimension": dimension, "counted_texts": table.counted_texts}
        return model.describe_change(
            self.teacher, "averaging vectors of tokens of", {"static": facts}
        )

    def _write(self, folder: Path, workspace: Workspace) -> StaticTable:
        """Write the model, and return its table."""
        from emberge.data import list_texts, load_step_datasets
        from emberge.encoding import TextEmbedder
        from emberge.model_folder import read_settings
        from emberge_encoder import write_static_model

        from emberge_smaller.corpus_tokens import read_tokenizer
        from emberge_smaller.token_vectors import build_static_table

        tokenizer = read_tokenizer(folder)
        texts = list_texts(load_step_datasets(workspace, self.data)) if self.data else None
        encoder = self.backbone.load(folder, device=workspace.machine.device, dtype="float32")
        embedder = TextEmbedder(encoder, progress=workspace.progress, model=str(self.teacher))
        table = build_static_table(tokenizer, embedder, texts)
        prompts: dict[str, Any] = read_settings(folder).get("prompts") or {}
        write_static_model(
            workspace.folder,
            table.vectors,
            tokenizer.to_str(pretty=False),
            prompts,
            workspace.provenance,
        )
        return table
