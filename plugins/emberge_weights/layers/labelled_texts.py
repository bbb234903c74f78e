"""Batches of a set's labelled queries or pairs, with a differentiable loss instead of its score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from emberge import Encoder, TokenisedText
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from emberge_weights.layers.member_tensors import Embed
from emberge_weights.members import Prompting, SideVectors
from emberge_weights.search_options import NEAR, OWN, PAIRS, QUERIES
from emberge_weights.set_scores import first_documents
from emberge_weights.weight_sets import WeightSet

Places = NDArray[np.int64]
TEMPERATURE = 0.05


class LabelledTexts:
    """Tokens of a set's texts with its labels.

    In a ranked set, each query comes with documents that belong to it and with the nearest other documents by
    the members' `weights`. All documents of a batch are candidates of all its queries.
    """

    def __init__(
        self,
        weight_set: WeightSet,
        members: Sequence[SideVectors],
        weights: NDArray[np.float64],
        encoder: Encoder,
        prompting: Prompting,
        max_length: int | None,
    ) -> None:
        def tokens(texts: Sequence[str], side: str) -> list[TokenisedText]:
            prompt = prompting.of(weight_set, side)
            return list(encoder.tokenise(texts, prompt=prompt, max_length=max_length))

        self._set = weight_set
        self.name = weight_set.name
        self.queries = tokens(weight_set.queries, "query")
        self.documents = tokens(weight_set.documents, "document")
        self._candidates = [] if weight_set.gold else _list_candidates(weight_set, members, weights)

    def batches(self, units: Places, rng: np.random.Generator) -> Iterator[Places]:
        """Yield batches of the labelled units endlessly; each pass has another random order."""
        usable = (
            units
            if self._set.gold
            else np.array([u for u in units if self._find_relevant_documents(u)], np.int64)
        )
        size = min(len(usable), PAIRS if self._set.gold else QUERIES)
        while size:
            order = rng.permutation(usable)
            yield from (
                order[start : start + size] for start in range(0, len(order) - size + 1, size)
            )

    def loss(self, embed: Embed, units: Places) -> Tensor:
        """Return the loss of a batch."""
        if self._set.gold:
            vectors = embed(
                [side[unit] for side in (self.queries, self.documents) for unit in units]
            )
            left, right = vectors.chunk(2)
            gold = torch.tensor([self._set.gold[unit] for unit in units])
            return order_loss(cosine_similarity(left, right), gold)
        places = sorted({document for unit in units for document in self._candidates[unit]})
        vectors = embed([*(self.queries[u] for u in units), *(self.documents[p] for p in places)])
        vectors = normalize(vectors, dim=1)
        relevant = [[p in self._find_relevant_documents(u) for p in places] for u in units]
        return ranking_loss(vectors[: len(units)] @ vectors[len(units) :].T, torch.tensor(relevant))

    def _find_relevant_documents(self, query: int) -> set[int]:
        return {document for document, grade in self._set.relevant[query].items() if grade > 0}


def _list_candidates(
    weight_set: WeightSet, members: Sequence[SideVectors], weights: NDArray[np.float64]
) -> list[list[int]]:
    """Return the indices of each query's best relevant and nearest other documents."""
    candidates = []
    for grades, nearest_documents in zip(
        weight_set.relevant, first_documents(weight_set, members, weights), strict=True
    ):
        best = sorted((p for p, grade in grades.items() if grade > 0), key=lambda p: -grades[p])
        nearest_others = [
            int(document) for document in nearest_documents if grades.get(int(document), 0) <= 0
        ]
        candidates.append([*best[:OWN], *nearest_others[:NEAR]])
    return candidates


def ranking_loss(cosines: Tensor, relevant: Tensor) -> Tensor:
    """Return InfoNCE (van den Oord et al., 2018, arXiv:1807.03748) of queries [q] over documents [q, d].

    `relevant` is a mask of the documents that belong to each query; their probabilities are added up.
    """
    logits = cosines / TEMPERATURE
    relevant_logits = logits.masked_fill(~relevant, -torch.inf).logsumexp(1)
    return (logits.logsumexp(1) - relevant_logits).mean()


def order_loss(cosines: Tensor, gold: Tensor) -> Tensor:
    """Return CoSENT's loss (Su, 2022) of pairs [n]: pairs with higher gold should be more similar."""
    wrong = (cosines[None] - cosines[:, None]) / TEMPERATURE
    pairs = wrong[gold[:, None] > gold[None]]
    return torch.cat([pairs.new_zeros(1), pairs]).logsumexp(0)
