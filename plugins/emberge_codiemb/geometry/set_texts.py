"""Texts of a data set as models read them: each once on its side, with the prompt of that side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Dataset, TokenisedText

if TYPE_CHECKING:
    from emberge.encoding import TextEmbedder

__all__ = ["SetTexts"]


@dataclass(frozen=True)
class SetTexts:
    """Distinct texts of a data set: `queries` are its anchors, or all texts if it is symmetric."""

    name: str
    prompt: str
    symmetric: bool
    queries: Sequence[str]
    documents: Sequence[str]

    @classmethod
    def of(cls, dataset: Dataset) -> SetTexts:
        """Return the texts of all rows, in order."""
        queries: dict[str, None] = {}
        documents: dict[str, None] = {}
        others = queries if dataset.symmetric else documents
        for row in range(len(dataset)):
            example = dataset[row]
            queries[example.anchor] = None
            others.update(dict.fromkeys((*example.positives, *example.negatives)))
        sides = tuple(queries), tuple(documents)
        return cls(dataset.info.name, dataset.prompt, dataset.symmetric, *sides)

    def __len__(self) -> int:
        return len(self.queries) + len(self.documents)

    def tokens(self, embedder: TextEmbedder) -> list[TokenisedText]:
        """Return every text's token ids, prompted as in a training: by the data set, else by the model."""
        own = embedder.encoder.prompts
        query = self.prompt or own.get("query", "")
        document = own.get("document", own.get("passage", ""))
        return [
            *embedder.tokenise(self.queries, prompt=query),
            *embedder.tokenise(self.documents, prompt=document),
        ]
