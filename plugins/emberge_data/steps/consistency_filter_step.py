"""The `consistency_filter` step: it keeps pairs whose positive is among the query's nearest documents."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Count, WholeNumber, Workspace, draw_order, make_seed

from emberge_data.steps.compared_set import ComparedSet, list_rows
from emberge_data.steps.outcome import Outcome, drop_texts
from emberge_data.steps.teacher import TaughtStep

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray
    from torch import Tensor

    from emberge_data.steps.compared_set import Numbers
    from emberge_data.steps.similarity import VectorSimilarity

# A last shard smaller than this share of a shard would filter less, and is joined to the one before it.
SMALLEST_SHARE = 0.1
# Cosines that differ by less are equal: rounding of float32 decides between them.
_EQUAL_MARGIN = 1e-6


@dataclass(frozen=True, kw_only=True)
class ConsistencyFilter(TaughtStep):
    """Filter that keeps pairs whose positive an encoder finds for the query among many documents.

    The rows of each set (a set has one language) are shuffled and cut into shards. A pair is kept if its
    positive is among the `top_k` documents of the shard by cosine with the query: its rank is 1 +
    the number of documents that score higher, and half of those that score the same (Nomic Embed v2,
    2025, arXiv:2502.07972; after E5, 2022, arXiv:2212.03533). A document that several rows have counts
    once, and the other positives of its row do not count against a positive. If the last shard has less
    than 10 % of `shard_size` rows, it is joined to the shard before it. Positives that do not pass are
    removed from their rows, and rows without any positive left are dropped.

    Example:
        consistent:
          consistency_filter:
            data: ./pairs.jsonl
            teacher:
              model: intfloat/multilingual-e5-small
              query_prompt: "query: "
              document_prompt: "passage: "
    """

    top_k: Count = 2
    """Largest rank that passes; a half rank is rounded down."""
    shard_size: Count = 1_000_000
    """Number of rows that are compared with each other."""
    seed: WholeNumber | None = None
    """Seed of the shards; by default the recipe's."""

    def list_texts(self, dataset: StoredDataset, workspace: Workspace) -> ComparedSet:
        return ComparedSet.of(dataset, workspace, negatives=False)

    def judge(
        self, compared: ComparedSet, similarity: VectorSimilarity, workspace: Workspace
    ) -> Generator[Outcome, None, None]:
        import numpy as np

        positives, row_count = compared.positives, len(compared.dataset)
        scores = similarity.score(positives.queries, positives.documents)
        is_kept = np.ones(len(scores), dtype=bool)
        parts = cut_shards(row_count, self.shard_size, workspace.seed, compared.name)
        for number, rows in enumerate(parts):
            workspace.progress(number, len(parts), "shards")
            pairs = np.flatnonzero(np.isin(positives.rows, rows))
            is_kept[pairs] = _count_higher(compared, similarity, pairs, scores) < self.top_k
        split = positives.split(is_kept, row_count)
        for row, (example, kept) in enumerate(zip(list_rows(compared.dataset), split, strict=True)):
            if not kept.any():
                yield Outcome(row, example, None, f"no positive among the {self.top_k} nearest")
                continue
            after = drop_texts(example, "positive", {*np.flatnonzero(~kept).tolist()})
            yield Outcome(row, example, after, "positives")


def cut_shards(size: int, shard_size: int, seed: int, name: str) -> list[Numbers]:
    """Return the rows of each shard of a set of `size` rows, in random order.

    A last shard with fewer than SMALLEST_SHARE of the rows of a shard is joined to the one before it.
    """
    import numpy as np

    order = draw_order(size, make_seed("shards", seed, name))
    parts = [order[first : first + shard_size] for first in range(0, size, shard_size)]
    if len(parts) > 1 and len(parts[-1]) < SMALLEST_SHARE * shard_size:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts


def _count_higher(
    compared: ComparedSet, similarity: VectorSimilarity, pairs: Numbers, scores: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return for each of a shard's pairs the number of its documents that score higher.

    Of documents with an equal score one half counts, as in the mean over all orders of equal scores. The
    positives of a pair's row do not count.
    """
    import numpy as np
    import torch
    from scipy.sparse import csr_array

    positives = compared.positives
    rows, queries = positives.rows[pairs], positives.queries[pairs]
    searched, columns = np.unique(positives.documents[pairs], return_inverse=True)
    row_has_document = csr_array(
        (np.ones(len(pairs), bool), (rows, columns)), (len(compared.dataset), len(searched))
    )
    counts = np.zeros(len(pairs))
    for part, documents, tile in similarity.compute_tiles(queries, searched):
        tile[row_has_document[rows[part]][:, documents].nonzero()] = -torch.inf
        limits = torch.from_numpy(scores[pairs[part], None]).to(tile.device)
        above, at_least = (
            _count_true(tile > limits + add) for add in (_EQUAL_MARGIN, -_EQUAL_MARGIN)
        )
        counts[part] += (above + at_least) / 2
    return counts


def _count_true(mask: Tensor) -> Numbers:
    """Return the number of true entries of each row."""
    import numpy as np

    if mask.device.type != "cpu":
        return np.asarray(mask.sum(dim=1).cpu().numpy())
    return np.asarray(np.count_nonzero(mask.numpy(), axis=1))  # ten times as fast as a sum of torch
