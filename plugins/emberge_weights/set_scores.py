"""Scores of weightings on a set, from the members' embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge_weights.judged_sets import JudgedSet
from emberge_weights.members import SetVectors, VectorRows
from emberge_weights.unit_scores import Array, Indices, UnitScores

# Numbers of gathered embeddings in memory at once.
GATHERED_NUMBERS = 16 << 20
_TINY_LENGTH = 1e-20
# Documents of a query that are ranked: the first ones of any single member and of equal weights.
DEPTH = 100
TOP_DOCUMENTS = 10
# Cosines in memory at once, and documents that are searched at once.
CELLS = 8 << 20
SEARCHED_DOCUMENTS = 8192
# Decimals of cosines beyond which float32 cannot tell documents apart.
_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class PairProducts:
    """Products of all pairs of members for queries and some documents of each.

    `dots` is [terms, queries, documents of each query]. `queries` and `documents` are squared lengths in the
    same terms, [terms, queries] and [terms, queries, documents of each query].
    """

    dots: Tensor
    queries: Tensor
    documents: Tensor

    def compute_cosines(self, terms: Tensor) -> Tensor:
        """Return cosines [weightings, queries, documents of each] for the `terms` of `expand_quadratic`."""
        flat = self.dots.flatten(1)
        cosines = (terms @ flat).view(len(terms), *self.dots.shape[1:])
        lengths = (terms @ self.documents.flatten(1)).view_as(cosines)
        cosines.mul_(lengths.clamp_min_(_TINY_LENGTH).rsqrt_())
        return cosines.mul_((terms @ self.queries).clamp_min_(_TINY_LENGTH).rsqrt_()[..., None])


def expand_quadratic(weights: NDArray[np.float64]) -> Tensor:
    """Return the products w_i w_j with i ≤ j of weightings [n, members], float32 [n, terms]."""
    first, second = np.triu_indices(weights.shape[1])
    return torch.from_numpy((weights[:, first] * weights[:, second]).astype(np.float32))


def stack_members(vectors: Sequence[VectorRows], indices: Indices | slice) -> Tensor:
    """Return the embeddings of some texts by all members, float32 [texts, members, d]."""
    return torch.from_numpy(np.stack([rows[indices] for rows in vectors], axis=1))


def yield_products(
    members: Sequence[SetVectors], documents: NDArray[np.int64]
) -> Iterator[tuple[slice, PairProducts]]:
    """Yield (slice of queries, products of the members' vectors of these queries and their documents)."""
    dimension = members[0].queries[0:1].shape[1]
    step = max(1, GATHERED_NUMBERS // (documents.shape[1] * len(members) * dimension))
    for start in range(0, len(documents), step):
        part = slice(start, min(start + step, len(documents)))
        query_vectors = stack_members([member.queries for member in members], part)
        indices, inverse = np.unique(documents[part], return_inverse=True)
        document_vectors = stack_members([member.documents for member in members], indices)
        lengths = _pack_symmetric(document_vectors @ document_vectors.mT)
        index_of = torch.from_numpy(inverse.reshape(documents[part].shape))
        pairs = document_vectors[index_of]  # [queries, of each, members, d]
        dots = torch.einsum("qmd,qpnd->qpmn", query_vectors, pairs)
        yield (
            part,
            PairProducts(
                _pack_symmetric(dots),
                _pack_symmetric(query_vectors @ query_vectors.mT),
                lengths[:, index_of],
            ),
        )


def _pack_symmetric(products: Tensor) -> Tensor:
    """Return products [..., members, members] as terms [terms, ...]: (i, j) and (j, i) are added up."""
    first, second = np.triu_indices(products.shape[-1])
    summed = products[..., first, second] + products[..., second, first]
    summed[..., torch.from_numpy(first == second)] /= 2
    return summed.movedim(-1, 0).contiguous()


def score_set(
    judged_set: JudgedSet, members: Sequence[SetVectors], weights: Array, pool: Array
) -> UnitScores:
    """Return the scores of weightings [n, members] on a set, unit by unit.

    In a ranked set, a query is compared only with documents that belong to it or that are among its first
    hundred by a weighting of `pool`; in any mixture of these weightings, other documents come after the first
    ten.
    """
    terms = expand_quadratic(weights)
    values = np.empty((len(weights), len(judged_set.queries)), np.float32)
    if judged_set.gold:
        pairs = np.arange(len(judged_set.queries))[:, None]
        for part, products in yield_products(members, pairs):
            for rows, cosines in _yield_cosines(products, terms):
                values[rows, part] = cosines[..., 0].numpy()
        return UnitScores(
            judged_set.name,
            judged_set.statistic,
            judged_set.unit,
            values,
            np.asarray(judged_set.gold),
        )
    documents, is_document = _pool_documents(judged_set, members, pool)
    gains, ideal = _read_gains(judged_set, documents, is_document)
    for part, products in yield_products(members, documents):
        is_padding = ~torch.from_numpy(is_document[part])
        for rows, cosines in _yield_cosines(products, terms):
            ranked = cosines.masked_fill_(is_padding, -2.0)
            values[rows, part] = _compute_ndcg(ranked, gains[part], ideal[part]).numpy()
    return UnitScores(judged_set.name, judged_set.statistic, judged_set.unit, values)


def _yield_cosines(products: PairProducts, terms: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (slice of weightings, their cosines)."""
    step = max(1, CELLS // products.dots[0].numel())
    for start in range(0, len(terms), step):
        rows = slice(start, min(start + step, len(terms)))
        yield rows, products.compute_cosines(terms[rows])


def _pool_documents(
    judged_set: JudgedSet, members: Sequence[SetVectors], pool: Array
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the pooled documents of each query [queries, most], and the mask that is false at padding."""
    nearest_by_weighting = [find_first_documents(judged_set, members, weights) for weights in pool]
    rows = []
    for query in range(len(judged_set.queries)):
        relevant = list(judged_set.relevant[query])
        rows.append(
            np.unique(
                np.concatenate(
                    [*(f[query] for f in nearest_by_weighting), np.array(relevant, np.int64)]
                )
            )
        )
    width = max(len(row) for row in rows)
    indices = np.zeros((len(rows), width), np.int64)
    is_document = np.zeros((len(rows), width), bool)
    for number, row in enumerate(rows):
        indices[number, : len(row)], is_document[number, : len(row)] = row, True
    return indices, is_document


def find_first_documents(
    judged_set: JudgedSet, members: Sequence[SetVectors], weights: Array
) -> NDArray[np.int64]:
    """Return the indices of each query's nearest documents by one weighting [queries, 100 or all]."""
    count = len(judged_set.documents)
    depth = min(DEPTH, count)
    queries = _sum_unit_rows(
        [m.queries for m in members], weights, slice(0, len(judged_set.queries))
    )
    best = torch.empty(len(queries), 0)
    indices = torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, count, SEARCHED_DOCUMENTS):
        part = slice(start, min(start + SEARCHED_DOCUMENTS, count))
        scores = queries @ _sum_unit_rows([m.documents for m in members], weights, part).T
        numbers = torch.arange(part.start, part.stop).expand(len(queries), -1)
        best = torch.cat([best, scores], 1)
        indices = torch.cat([indices, numbers], 1)
        best, order = best.topk(min(depth, best.shape[1]), dim=1)
        indices = indices.gather(1, order)
    return indices.numpy()


def _sum_unit_rows(vectors: Sequence[VectorRows], weights: Array, indices: slice) -> Tensor:
    used_members = [number for number, weight in enumerate(weights) if weight > 0]
    rows = stack_members([vectors[number] for number in used_members], indices)
    weighted_sums = torch.einsum("m,nmd->nd", torch.from_numpy(weights[used_members]).float(), rows)
    return torch.nn.functional.normalize(weighted_sums, dim=1)


def _read_gains(
    judged_set: JudgedSet, documents: NDArray[np.int64], is_document: NDArray[np.bool_]
) -> tuple[Tensor, Tensor]:
    """Return gains [queries, documents of each query], and each query's best possible discounted sum."""
    gains = np.zeros(documents.shape, np.float32)
    ideal = np.zeros(len(documents), np.float32)
    discounts = 1 / np.log2(np.arange(2, TOP_DOCUMENTS + 2))
    for query, grades in enumerate(judged_set.relevant):
        for document, grade in grades.items():
            gains[query][is_document[query] & (documents[query] == document)] = max(0, grade)
        top = np.sort([max(0, grade) for grade in grades.values()])[::-1][:TOP_DOCUMENTS]
        ideal[query] = (top * discounts[: len(top)]).sum()
    return torch.from_numpy(gains), torch.from_numpy(ideal)


def _compute_ndcg(cosines: Tensor, gains: Tensor, ideal: Tensor) -> Tensor:
    """Return nDCG@10 with linear gains (Järvelin and Kekäläinen, 2002), [weightings, queries].

    Documents with equal cosines have the mean of their gains, as in the mean over all of their orders.
    """
    depth = min(TOP_DOCUMENTS, cosines.shape[2])
    rounded, expanded = cosines.round(decimals=_DECIMALS), gains.expand(len(cosines), -1, -1)
    best, order = rounded.topk(min(depth + 1, cosines.shape[2]), dim=2)
    top_gains = expanded.gather(2, order)
    if bool((best.diff(dim=2) == 0).any()):
        best, order = rounded.sort(dim=2, descending=True)
        top_gains = _average_ties(best, expanded.gather(2, order))
    top_gains = top_gains[..., :depth]
    discounts = torch.arange(2, depth + 2).float().log2().reciprocal()
    return (top_gains @ discounts) / ideal.clamp_min(1e-9)


def _average_ties(ordered: Tensor, gains: Tensor) -> Tensor:
    """Return gains of documents in the order of their cosines, each the mean over equal cosines."""
    is_new = torch.nn.functional.pad(ordered.diff(dim=2) != 0, (1, 0))
    run = is_new.long().cumsum(dim=2)
    sums = torch.zeros_like(gains).scatter_add(2, run, gains)
    counts = torch.zeros_like(gains).scatter_add(2, run, torch.ones_like(gains))
    return (sums / counts.clamp_min(1)).gather(2, run)
