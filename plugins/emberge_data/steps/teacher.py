"""Teachers: encoders that judge texts, whose embeddings are kept in the store of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    Backbone,
    DataError,
    Dataset,
    EmbeddingKind,
    ModelRef,
    Preflight,
    Problem,
    TextLength,
    Workspace,
    component,
)
from emberge.data import open_data_file
from emberge.model_folder import TextLimit

if TYPE_CHECKING:
    from emberge.encoding import EmbeddingStore, TextSearch, Vectors


SHOWN = 3
CARD_BYTES = 1 << 20  # that are looked at
# Openings of quoted texts: those of E5 and Nomic Embed, then instructions, as of BGE or GTE.
_PREFIXES = r"(?:(?:search_)?(?:query|passage|document): )"
_INSTRUCTIONS = r"(?:(?:Instruct: |Represent this )[^\"'`\n\\]{0,120})"
_QUOTED = re.compile(rf"[\"'`]({_PREFIXES}|{_INSTRUCTIONS})")
# More tokens than any model reads.
_LONG = "word " * 100_000
# Names of prompts that are used without being asked for.
_USED = ("query", "document", "passage")


def card_prompts(folder: Path) -> list[str]:
    """Return at most three prompts, with which texts quoted in the model card begin; empty without a card."""
    try:
        with open_data_file(folder / "README.md") as file:
            card = file.read(CARD_BYTES).decode("utf-8", errors="replace")
    except DataError:  # there is none, or no file that is one
        return []
    prompts = _QUOTED.findall(card)
    return [*dict.fromkeys(prompts)][:SHOWN]


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

    def check(self, context: Preflight, option: str = "teacher") -> Iterator[Problem]:
        """Yield problems of the checkpoint, and a warning if its own prompts are not used."""
        folder = context.whole_model(self.model)
        if folder is None:
            return
        problems = self.backbone.describe(folder).problems
        for message in problems or TextLimit.read(folder).problems(self.max_length):
            yield context.problem(f"{self.model}: {message}", option)
        unused = self._list_unused_prompts(folder)
        if unused and self.query_prompt is None:
            yield context.warning(
                f"{self.model} has prompts that are not used: {unused}; write query_prompt and "
                "document_prompt (an empty text for none)",
                option,
            )

    def _list_unused_prompts(self, folder: Path) -> str:
        """Return, as text, the prompts of the model's config or card that the step's options leave unused."""
        from emberge.model_folder import read_settings

        prompts: Mapping[str, Any] = read_settings(folder).get("prompts") or {}
        if any(prompts.get(name) for name in _USED):
            return ""
        named = [f"{name} ({text!r})" for name, text in prompts.items() if text]
        return ", ".join(named or [f"{text!r} on its card" for text in card_prompts(folder)])

    @contextmanager
    def opened(self, workspace: Workspace) -> Iterator[OpenTeacher]:
        """Load the encoder for the duration of the `with` block; each rank of the step embeds a share."""
        from emberge.encoding import EmbeddingStore
        from emberge.ranks import join_ranks

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            encoder = self.backbone.load(folder, device=workspace.machine.device, dtype="float32")
            store = EmbeddingStore(
                workspace.store,
                encoder,
                model=f"{model.fingerprint} {self.backbone!r}",
                name=model.name,
                progress=workspace.progress,
                ranks=join_ranks(workspace.machine.device),
            )
            yield OpenTeacher(self, model.name, store, workspace)


class OpenTeacher:
    """Loaded teacher, which embeds the two sides of a data set."""

    def __init__(
        self, options: Teacher, name: str, store: EmbeddingStore, workspace: Workspace
    ) -> None:
        self.name = name
        self._options = options
        self._store = store
        self._workspace = workspace
        tokenised = store.encoder.tokenise([_LONG], prompt="", max_length=options.max_length)
        self._limit = len(tokenised[0].ids)

    @property
    def kind(self) -> EmbeddingKind:
        """Kind of the teacher's embeddings."""
        return self._options.backbone.kind

    def queries(self, texts: Sequence[str], dataset: Dataset) -> Vectors:
        """Return embeddings of anchors, not normalised."""
        return self._embed_texts(texts, self.prompts(dataset)[0], dataset)

    def documents(self, texts: Sequence[str], dataset: Dataset) -> Vectors:
        """Return embeddings of positives, negatives or a corpus."""
        return self._embed_texts(texts, self.prompts(dataset)[1], dataset)

    def search(self) -> TextSearch:
        """Return a search by the teacher's own similarity, for all retrievers."""
        from emberge.encoding import TextEmbedder, TextSearch

        embedder = TextEmbedder(self._store.encoder, model=self.name)
        return TextSearch(embedder, max_length=self._options.max_length)

    def prompts(self, dataset: Dataset) -> tuple[str, str]:
        """Return the prompts of a set's queries and documents."""
        prompts = self._store.encoder.prompts
        document_prompt = self._options.document_prompt
        if document_prompt is None and dataset.symmetric:
            document_prompt = self._find_query_prompt(dataset)
        if document_prompt is None:
            document_prompt = prompts.get("document", prompts.get("passage", ""))
        return self._find_query_prompt(dataset), document_prompt

    def _find_query_prompt(self, dataset: Dataset) -> str:
        if self._options.query_prompt is not None:
            return self._options.query_prompt
        return dataset.prompt or self._store.encoder.prompts.get("query", "")

    def _embed_texts(self, texts: Sequence[str], prompt: str, dataset: Dataset) -> Vectors:
        vectors = self._store.embed(texts, prompt=prompt, max_length=self._options.max_length)
        cut = int((vectors.lengths >= self._limit).sum())
        if cut:
            self._workspace.warn(
                f"{dataset.info.name}: {cut:,} of {len(texts):,} texts ({cut / len(texts):.1%}) are as long "
                f"as {self.name} reads or longer ({self._limit:,} tokens), so their ends count for nothing"
            )
        return vectors
