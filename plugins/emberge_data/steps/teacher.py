"""Teachers, models that judge texts, and the base of the steps that use one.

Embeddings and scores of teachers are kept in the store of the run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from emberge import (
    Artifact,
    Backbone,
    Dataset,
    EmbeddingKind,
    ModelRef,
    Preflight,
    Problem,
    TextLength,
    Workspace,
    component,
)
from emberge.data import check_datasets
from emberge.model_folder import TextLimit
from emberge_encoder import CrossEncoderFacts

from emberge_data.steps.compared_set import ComparedSet, TextPairs, explain_missing_positives
from emberge_data.steps.data_step import DataStep

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from emberge_encoder import EmbeddingStore
    from numpy.typing import NDArray

    from emberge_data.steps.outcome import Outcome
    from emberge_data.steps.similarity import VectorSimilarity


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Encoder whose similarities a step uses.

    The prompt of a query is `query_prompt`, else the prompt of its data set, else the model's prompt called
    `query`. The prompt of a document is `document_prompt`, else the model's prompt called `document` or
    `passage`. In a symmetric set all texts get the prompt of a query.
    """

    model: ModelRef
    """Encoder."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint."""
    max_length: TextLength | None = None
    """Largest number of tokens of a text; by default the model's own limit."""
    query_prompt: str | None = None
    """Text before queries."""
    document_prompt: str | None = None
    """Text before documents."""

    def check(self, context: Preflight, *, reads_pairs: bool = False) -> Iterator[Problem]:
        """Yield problems of the checkpoint; with `reads_pairs` it may be a cross-encoder too."""
        folder = context.whole_model(self.model)
        if folder is None:
            return
        facts = CrossEncoderFacts.read(folder)
        reads_pairs &= facts.is_one
        problems = facts.problems if reads_pairs else self.backbone.describe(folder).problems
        for message in problems or TextLimit.read(folder).describe_problems(self.max_length):
            yield context.problem(f"{self.model}: {message}", "teacher")

    @contextmanager
    def opened(self, workspace: Workspace) -> Iterator[OpenTeacher]:
        """Load the encoder for the duration of the `with` block; each rank of the step embeds a share."""
        from emberge.ranks import join_ranks
        from emberge_encoder import CrossEncoder as PairBackbone
        from emberge_encoder import EmbeddingStore

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            reads_pairs = CrossEncoderFacts.read(folder).is_one
            backbone = PairBackbone() if reads_pairs else self.backbone
            encoder = backbone.load(folder, device=workspace.machine.device, dtype="float32")
            store = EmbeddingStore(
                workspace.store,
                encoder,
                model_key=f"{model.fingerprint} {backbone!r}",
                model_name=model.name,
                progress=workspace.progress,
                ranks=join_ranks(workspace.machine.device),
            )
            yield OpenTeacher(self, backbone.kind, model.name, store, workspace)


class OpenTeacher:
    """Loaded teacher, which compares queries and documents by embeddings of a kind."""

    def __init__(
        self,
        options: Teacher,
        kind: EmbeddingKind,
        name: str,
        store: EmbeddingStore,
        workspace: Workspace,
    ) -> None:
        self.kind, self.name = kind, name
        self._options, self._store, self._workspace = options, store, workspace

    def compare(self, compared: ComparedSet) -> VectorSimilarity:
        """Return the similarity of a set's queries and documents, with all vectors embedded."""
        from emberge_data.steps.similarity import VectorSimilarity

        dataset = compared.dataset
        prompts = self._find_query_prompt(dataset), self._find_document_prompt(dataset)
        queries, documents = (
            self._store.embed(texts, prompt=prompt, max_length=self._options.max_length)
            for texts, prompt in zip((compared.queries, compared.documents), prompts, strict=True)
        )
        return VectorSimilarity(queries, documents, self._workspace.machine.device)

    def score_pairs(self, compared: ComparedSet, pairs: TextPairs) -> NDArray[np.float32]:
        """Return a cross-encoder's output for each pair, or another teacher's cosine of it, float32 [n]."""
        if self.kind != "pair_score":
            similarity = self.compare(compared)
            return similarity.score(pairs.queries, pairs.documents).clip(-1.0, 1.0)
        scores = self._store.embed_pairs(
            compared.queries.take(pairs.queries, self._options.query_prompt),
            compared.documents.take(pairs.documents, self._options.document_prompt),
            max_length=self._options.max_length,
        )
        return scores[:][:, 0]

    def _find_document_prompt(self, dataset: Dataset) -> str:
        if self._options.document_prompt is not None:
            return self._options.document_prompt
        if dataset.symmetric:
            return self._find_query_prompt(dataset)
        from emberge.encoding import find_document_prompt

        return find_document_prompt(self._store.encoder)

    def _find_query_prompt(self, dataset: Dataset) -> str:
        if self._options.query_prompt is not None:
            return self._options.query_prompt
        return dataset.prompt or self._store.encoder.prompts.get("query", "")


@dataclass(frozen=True, kw_only=True)
class TaughtStep(DataStep):
    """Step over sets of queries and positives, which uses the similarities of a teacher.

    All ranks embed the texts as vectors together, and the first rank does the rest alone.
    """

    every_rank: ClassVar[bool] = True
    scores_pairs: ClassVar[bool] = False
    """True if pairs of any similarity are scored, and the teacher may be a cross-encoder."""

    teacher: Teacher
    """Encoder that judges."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        yield from self.teacher.check(context, reads_pairs=self.scores_pairs)
        for first_rows in check_datasets(context, self.data, show=False).first_rows:
            if not first_rows.example.positives:
                yield context.problem(explain_missing_positives(first_rows.info.name), "data")
            elif first_rows.info.task == "sts" and not self.scores_pairs:
                yield context.problem(
                    f"dataset '{first_rows.info.name}' has pairs of any similarity, not queries and "
                    "positives; leave it out with `only`",
                    "data",
                )

    def list_texts(self, dataset: StoredDataset, workspace: Workspace) -> ComparedSet:
        """Return the queries and documents of a set that the teacher is to embed."""
        return ComparedSet.of(dataset, workspace)

    def compare(self, compared: ComparedSet, teacher: OpenTeacher) -> Any:
        """Return the teacher's similarities of a set's texts; called on every rank."""
        return teacher.compare(compared)

    def judge(
        self, compared: ComparedSet, values: Any, workspace: Workspace
    ) -> Generator[Outcome, None, str | None]:
        """Yield the outcome of every row by the `values` of `compare`; return a sentence on the set."""
        raise NotImplementedError

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.ranks import join_ranks

        sets = [self.list_texts(dataset, workspace) for dataset in self.load(workspace)]
        with self.teacher.opened(workspace) as teacher:
            values = []
            with workspace.part("stage", 1, 2):
                for number, compared in enumerate(sets, 1):
                    with workspace.part("set", number, len(sets), compared.name):
                        values.append(self.compare(compared, teacher))
            if not join_ranks(workspace.machine.device).is_first:
                return Artifact(kind="data")
            notes: list[str] = []

            def judge(number: int, compared: ComparedSet) -> Iterator[Outcome]:
                with workspace.part("set", number + 1, len(sets), compared.name):
                    note = yield from self.judge(compared, values[number], workspace)
                notes.extend([note] if note else [])

            outcomes = (
                (one.dataset, partial(judge, number, one)) for number, one in enumerate(sets)
            )
            with workspace.part("stage", 2, 2):
                return self.finish(
                    workspace,
                    outcomes,
                    notes=notes,
                    scored_by=(self.teacher.model.text,) if self.scores_pairs else (),
                )
