"""The `consistency_filter` step: it keeps pairs whose positive is among the query's nearest documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from emberge import (
    Count,
    DataError,
    Example,
    Preflight,
    Problem,
    WholeNumber,
    Workspace,
    shuffled,
    stable_seed,
)

from emberge_data.steps.listed_set import ListedSet, rows_of
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.search.exact import SearchMemory, full_precision, round_down, round_up
from emberge_data.steps.taught_step import TaughtStep, describe_spread

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray
    from torch import Tensor

    from emberge_data.steps.listed_set import ArrangedSet
    from emberge_data.steps.search.exclusions import Lists
    from emberge_data.steps.search.space import Space


# A last shard smaller than this share of a shard would filter less, and is joined to the one before it.
SMALLEST = 0.1


@dataclass(frozen=True, kw_only=True)
class ConsistencyFilter(TaughtStep):
    """Filter that keeps pairs whose positive an encoder finds for the query among many documents.

    The rows of each set (a set has one language) are shuffled and cut into shards. A pair is kept if its
    positive is among the `top_k` documents of the shard by exact cosine with the query: its rank is 1 +
    the number of documents that score higher, and half of those that score the same (Nomic Embed v2,
    2025, arXiv:2502.07972; after E5, 2022, arXiv:2212.03533). A document that several rows have counts
    once, and the other positives of its row do not count against a positive. If the last shard has less
    than 10 % of `shard_size` rows, it is joined to the shard before it. With several teachers, a pair is
    kept only if it passes with each of them. Positives that do not pass are removed from their rows, and
    rows without any positive left are dropped.

    Example:
        consistent:
          consistency_filter:
            data: ./pairs.jsonl
            teachers:
              model: intfloat/multilingual-e5-small
              query_prompt: "query: "
              document_prompt: "passage: "
    """

    top_k: Count = 2
    """Largest rank that passes."""
    shard_size: Count = 1_000_000
    """Number of rows that are compared with each other."""
    seed: WholeNumber | None = None
    """Seed of the shards; by default the recipe's."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        if self.shard_size <= self.top_k:
            yield context.problem(
                f"shard_size ({self.shard_size}) is not above top_k ({self.top_k}), so every pair would stay",
                "shard_size",
            )

    def arranged(self, dataset: StoredDataset, workspace: Workspace) -> ArrangedSet:
        import numpy as np

        from emberge_data.steps.listed_set import ArrangedSet

        listed = ListedSet.of(dataset, workspace)
        return ArrangedSet.of(listed, np.unique(listed.positives.places))

    def outcomes(
        self, number: int, arranged: ArrangedSet, spaces: Sequence[Space], workspace: Workspace
    ) -> Generator[Outcome, None, None]:
        import numpy as np

        starts = arranged.listed.positives.starts
        is_kept = np.ones(int(starts[-1]), dtype=bool)
        shards_of_rows = shards(
            len(arranged.dataset), self.shard_size, workspace.seed, arranged.name
        )
        for shard, rows in enumerate(shards_of_rows):
            workspace.progress(shard, len(shards_of_rows), "shards")
            for space in spaces:
                pairs, higher = _count_shard(arranged, space, rows, self.limits(workspace))
                is_kept[pairs] &= higher < self.top_k
        if not is_kept.any():
            raise DataError(self._explain_nothing(arranged, spaces))
        for row, example in enumerate(rows_of(arranged.dataset)):
            row_is_kept = is_kept[starts[row] : starts[row + 1]]
            note = (
                f"no positive among the {self.top_k} nearest"
                if not row_is_kept.any()
                else "positives"
            )
            yield Outcome(row, example, _keep_positives(example, row_is_kept), note)

    def _explain_nothing(self, arranged: ArrangedSet, spaces: Sequence[Space]) -> str:

        queries, documents = arranged.numbers(arranged.listed.positives)
        seen = [
            f"{teacher.model} scores them {describe_spread(space.scores(queries, documents))}"
            for teacher, space in zip(self.teachers, spaces, strict=True)
        ]
        return (
            f"dataset '{arranged.name}': no positive is among the {self.top_k} nearest documents of its "
            f"query ({'; '.join(seen)}); raise top_k, make shards smaller, or see to the teacher's prompts"
        )


def shards(size: int, shard_size: int, seed: int, name: str) -> list[NDArray[np.int64]]:
    """Return the rows of each shard of a set of `size` rows, in random order.

    The last shard may be smaller; if it has less than the share SMALLEST of a shard, it is joined to the one
    before it.
    """
    import numpy as np

    order = shuffled(size, stable_seed("shards", seed, name))
    parts = [order[first : first + shard_size] for first in range(0, size, shard_size)]
    if len(parts) > 1 and len(parts[-1]) < SMALLEST * shard_size:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts


def _count_shard(
    arranged: ArrangedSet, space: Space, rows: NDArray[np.int64], limits: SearchMemory
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a shard's (row, positive) pairs, and for each the number of documents that score higher."""
    import numpy as np

    from emberge_data.steps.search.exclusions import Lists

    positives = arranged.listed.positives
    in_shard = np.zeros(len(arranged.dataset), dtype=bool)
    in_shard[rows] = True
    pairs = np.flatnonzero(in_shard[positives.rows])
    row_of = positives.rows[pairs]
    documents = arranged.document_of[positives.places[pairs]]
    row_positives = Lists.of_pairs(row_of, documents, len(arranged.dataset))
    searched = np.unique(documents)
    higher = np.empty(len(pairs))
    size = limits.queries(space.queries.dimension)
    for first in range(0, len(pairs), size):
        part = slice(first, first + size)
        higher[part] = count_higher(
            space,
            arranged.query_of[row_of[part]],
            documents[part],
            searched,
            spared_by_pair=row_positives.select(row_of[part]),
            limits=limits,
        )
    return pairs, higher


def _keep_positives(example: Example, is_kept: NDArray[np.bool_]) -> Example | None:
    """Return the example with its passing positives and their scores; None if no positive passes."""
    places = is_kept.nonzero()[0].tolist()
    if len(places) == len(example.positives):
        return example
    if not places:
        return None
    scores = example.positive_scores
    return dataclasses.replace(
        example,
        positives=tuple(example.positives[number] for number in places),
        positive_scores=None if scores is None else tuple(scores[number] for number in places),
    )


def count_higher(
    space: Space,
    queries: NDArray[np.int64],
    documents: NDArray[np.int64],
    searched: NDArray[np.int64],
    *,
    spared_by_pair: Lists | None = None,
    limits: SearchMemory | None = None,
) -> NDArray[np.float64]:
    """Return for each pair the number of documents in `searched` that score above the pair's document.

    Of documents with an equal score one half counts, as in the mean over all orders of equal scores.
    `searched` are sorted, distinct document numbers. Documents in `spared_by_pair[i]` are not counted for the
    i-th pair. Float32 products decide if their difference exceeds the bound on their error; otherwise exact
    cosines do.
    """
    import numpy as np
    import torch

    limits = limits or SearchMemory()
    scores = space.scores(queries, documents)
    highest = round_up(scores + space.slack, space.device)
    lowest = round_down(scores - space.slack, space.device)
    counts = np.zeros(len(queries))
    count_exactly = partial(_count_exactly, space, queries, searched, documents, scores)
    rows, columns = limits.tile(space.device, len(queries))
    units = space.queries.units(queries)
    buffer = torch.empty(
        rows * columns, device=space.device
    )  # fresh pages would cost a fifth of a product
    with full_precision():
        for first in range(0, len(searched), columns):
            document_vectors = space.documents.units(searched[first : first + columns])
            for row in range(0, len(queries), rows):
                part = slice(row, row + rows)
                part_units = units[part]
                tile = buffer[: len(part_units) * len(document_vectors)].view(
                    len(part_units), len(document_vectors)
                )
                torch.mm(part_units, document_vectors.T, out=tile)
                candidate_counts = _count_true(tile > lowest[part, None])
                counts[part] += (sure_counts := _count_true(tile > highest[part, None]))
                undecided_rows = np.flatnonzero(candidate_counts > sure_counts)
                near, at = _find_undecided(tile, undecided_rows, lowest[part], highest[part])
                counts += count_exactly(near + row, at + first)
    if spared_by_pair is not None:
        counts -= count_exactly(*_find_spared(searched, spared_by_pair, len(queries)))
    return counts


def _count_true(mask: Tensor) -> NDArray[np.int64]:
    """Return the number of true entries of each row."""
    import numpy as np

    if mask.device.type != "cpu":
        return np.asarray(mask.sum(dim=1).cpu().numpy())
    return np.asarray(np.count_nonzero(mask.numpy(), axis=1))  # ten times as fast as a sum of torch


def _find_undecided(
    tile: Tensor, rows: NDArray[np.int64], lowest: Tensor, highest: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the products in these rows that lie between both bounds."""
    import torch

    row_numbers = torch.from_numpy(rows).to(tile.device)
    products = tile[row_numbers]
    undecided = (products > lowest[row_numbers, None]) & ~(products > highest[row_numbers, None])
    at, columns = undecided.nonzero(as_tuple=True)
    return rows[at.cpu().numpy()], columns.cpu().numpy()


def _count_exactly(
    space: Space,
    queries: NDArray[np.int64],
    searched: NDArray[np.int64],
    documents: NDArray[np.int64],
    scores: NDArray[np.float64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the number of each query's pairs (row, column of `searched`) with a higher exact cosine.

    A pair with an equal cosine of another document counts as half.
    """
    import numpy as np

    exact_scores, others = space.scores(queries[rows], searched[columns]), searched[columns]
    ties = (exact_scores == scores[rows]) & (others != documents[rows])
    counted = (exact_scores > scores[rows]) + ties / 2
    return np.asarray(np.bincount(rows, counted, minlength=len(queries)), np.float64)


def _find_spared(
    searched: NDArray[np.int64], spared_by_pair: Lists, pairs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the (pair, column of `searched`) of each spared document that is searched."""
    import numpy as np

    rows, places = spared_by_pair.pairs(np.arange(pairs))
    at = np.searchsorted(searched, places)
    is_counted = searched[np.minimum(at, len(searched) - 1)] == places
    return rows[is_counted], at[is_counted]
