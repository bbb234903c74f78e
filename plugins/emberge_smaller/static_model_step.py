"""The `static_model` step: one vector for each token of a teacher, and no transformer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    Backbone,
    Count,
    DataEntry,
    EmbergeError,
    Expected,
    ModelRef,
    Positive,
    Preflight,
    Problem,
    Step,
    Workspace,
    component,
)
from emberge.contracts import ParameterCount


@dataclass(frozen=True, kw_only=True)
class StaticModel(Step):
    """Make a static model: a text's embedding is the mean of its tokens' vectors, scaled to length one.

    The vectors are a teacher's embeddings of the single tokens of its vocabulary (model2vec: Tulkens and van
    Dongen, 2024), less their mean, and weighted by a / (a + p): frequent tokens count little (SIF: Arora et
    al., 2017). The probability p of a token is counted in the texts of `data`; without data it is that of
    Zipf's law, by the token's place in the vocabulary. Without `dimension` the vectors are of the teacher's
    space, so that the model can answer queries in the teacher's index.

    The result is a folder of sentence-transformers with a stock StaticEmbedding, hundreds of times as fast as
    a transformer. Train it by a step `distil` with `student: {model: …}`, by which it gains most, or `train`.

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
    dimension: Count | None = None
    """Number of principal components; by default all numbers of the teacher's vectors, unrotated."""
    sif_coefficient: Positive = 1e-3
    """Coefficient a; tokens with a probability far above it hardly count."""
    backbone: Backbone = component("text_encoder")
    """Backbone of the teacher."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        folder = context.whole_model(self.teacher)
        if self.data:
            yield from check_datasets(context, self.data, show=False).problems
        expected = Artifact(kind="model", parents=(self.teacher.text,))
        if folder is None:
            context.expect(Expected(expected))
            return
        facts = self.backbone.describe(folder)
        for message in facts.problems:
            yield context.problem(message, "teacher")
        if facts.problems:
            return
        if None not in (facts.dimension, self.dimension) and self.dimension > facts.dimension:  # type: ignore[operator]
            yield context.problem(
                f"the teacher's vectors have {facts.dimension} numbers, so no {self.dimension} principal "
                "components; lower dimension",
                "dimension",
            )
        size = self._count_vocabulary(folder)
        if size is None or facts.dimension is None:
            context.expect(Expected(expected))
            return
        total = size * (self.dimension or facts.dimension)
        context.expect(Expected(expected, parameters=ParameterCount(total, total, 0)))
        context.note("static model", [f"{size:,} tokens, {total:,} numbers"])

    def _count_vocabulary(self, folder: Path) -> int | None:
        from emberge_smaller.token_vectors import read_tokenizer

        try:
            return int(read_tokenizer(folder).get_vocab_size())
        except EmbergeError:
            return None  # the backbone's facts report the tokenizer

    def run(self, workspace: Workspace) -> Artifact:
        model = workspace.model(self.teacher)
        with workspace.whole_model(model) as folder:
            tokens, size, texts = self._write(folder, model.fingerprint, workspace)
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.teacher.text,),
            details={
                "made_by": "averaging vectors of tokens of",
                **model.as_base(self.teacher),
                "static": {"tokens": tokens, "dimension": size, "counted_texts": texts},
            },
        )

    def _write(self, folder: Path, content: str, workspace: Workspace) -> tuple[int, int, int]:
        """Write the model; return the number of tokens, the size of a vector, and of counted texts."""
        from emberge.encoding import TextEmbedder
        from emberge.model_folder import Checkpoint, read_settings, write_static_model

        from emberge_smaller.token_vectors import (
            embed_tokens,
            estimate_probabilities,
            read_tokenizer,
            weigh_tokens,
        )

        tokenizer = read_tokenizer(Checkpoint(folder).tokenizer_folder)
        # Ids may have gaps, and a table has a row for each id.
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values()) + 1
        encoder = self.backbone.load(folder, device=workspace.machine.device, dtype="float32")
        embedder = TextEmbedder(encoder, progress=workspace.progress, model=str(self.teacher))
        counts, texts = self._count(tokenizer, size, workspace)
        vectors = weigh_tokens(
            embed_tokens(embedder, size),
            estimate_probabilities(counts, size),
            coefficient=self.sif_coefficient,
            dimension=self.dimension,
        )
        special = [
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        ]
        unused = set(range(size)) - set(vocabulary.values())
        vectors[sorted({*special, *unused})] = 0
        prompts: dict[str, Any] = read_settings(folder).get("prompts") or {}
        write_static_model(
            workspace.folder, vectors, tokenizer.to_str(pretty=False), prompts, workspace.provenance
        )
        return size, vectors.shape[1], texts

    def _count(self, tokenizer: Any, size: int, workspace: Workspace) -> tuple[Any, int]:
        """Return the counts of tokens in the data, or None without data, and the number of texts."""
        from emberge.data import step_datasets

        from emberge_smaller.token_vectors import count_tokens

        if not self.data:
            return None, 0
        texts_seen = 0

        def texts() -> Iterator[str]:
            nonlocal texts_seen
            for dataset in step_datasets(workspace, self.data):
                for row in range(len(dataset)):
                    example = dataset[row]
                    for text in (example.anchor, *example.positives, *example.negatives):
                        texts_seen += 1
                        yield text

        def tokenise(some: Any) -> Any:
            return [e.ids for e in tokenizer.encode_batch(list(some), add_special_tokens=False)]

        counts = count_tokens(tokenise, texts(), size)
        return counts, texts_seen
