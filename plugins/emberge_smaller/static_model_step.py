"""The `static_model` step: one vector for each token of a teacher, and no transformer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    Backbone,
    DataEntry,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
    component,
)


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

        folder = context.whole_model(self.teacher)
        if self.data:
            yield from check_datasets(context, self.data, show=False).problems
        if folder is not None:
            for message in self.backbone.describe(folder).problems:
                yield context.problem(message, "teacher")

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.teacher)
        with workspace.whole_model(model) as folder:
            tokens, size, texts = self._write(folder, workspace)
        details = {"static": {"tokens": tokens, "dimension": size, "counted_texts": texts}}
        return model.describe_change(self.teacher, "averaging vectors of tokens of", details)

    def _write(self, folder: Path, workspace: Workspace) -> tuple[int, int, int]:
        """Write the model; return the number of tokens, the size of a vector, and of counted texts."""
        from emberge.data import list_texts, load_step_datasets
        from emberge.encoding import TextEmbedder
        from emberge.model_folder import read_settings
        from emberge_encoder import write_static_model

        from emberge_smaller import token_vectors

        tokenizer = token_vectors.read_tokenizer(folder)
        size, texts = token_vectors.count_rows(tokenizer), 0
        token_by_id = token_vectors.list_tokens_of_texts(tokenizer)
        ids = list(token_by_id)
        if self.data:
            counts, texts = token_vectors.count_tokens(
                tokenizer, list_texts(load_step_datasets(workspace, self.data)), size
            )
            probabilities = token_vectors.count_probabilities(counts[ids])
        else:
            probabilities = token_vectors.guess_probabilities([*token_by_id.values()])
        encoder = self.backbone.load(folder, device=workspace.machine.device, dtype="float32")
        embedder = TextEmbedder(encoder, progress=workspace.progress, model=str(self.teacher))
        embedded = token_vectors.embed_tokens(embedder, ids)
        vectors = token_vectors.weigh_tokens(embedded, probabilities)
        prompts: dict[str, Any] = read_settings(folder).get("prompts") or {}
        table = token_vectors.build_table(vectors, ids, size)
        write_static_model(
            workspace.folder, table, tokenizer.to_str(pretty=False), prompts, workspace.provenance
        )
        return size, vectors.shape[1], texts
