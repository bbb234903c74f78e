"""Retrieval first, then every task with only hard negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emberge import Batches, DataError, DatasetInfo, Pool, Rows, draw_order, make_seed
from emberge.contracts import take_rows

from emberge_train.samplers.batches import InOrder, Shuffled
from emberge_train.samplers.one_dataset_samplers import OneDataset

RETRIEVAL_TASKS = ("retrieval", "reranking")
# Share of the rows of a retrieval set in the second stage.
RETRIEVAL_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class TwoStage(OneDataset):
    """Retrieval first, then every task with only hard negatives (BOOM, arXiv:2602.05787).

    Stage one shuffles the batches of the retrieval and reranking sets, with other rows' texts as negatives.
    Stage two shuffles the batches of all other sets and of half of each retrieval set, drawn at random; there
    other rows' texts are never negatives, whatever the training's `negatives` are. An epoch is both stages.
    Each further epoch repeats both, with a new sample.

    Example:
        data: ./datasets.yaml
        sampler: two_stage
    """

    def batches(self, pool: Pool, seed: int) -> Batches:
        """Return the batches of stage one, then those of stage two.

        Raises:
            DataError: if there is no retrieval data for the first stage, or no data for another stage.
        """
        retrieval = {i: rows for i, rows in pool.items() if i.task in RETRIEVAL_TASKS}
        if not retrieval:
            raise DataError(
                "two_stage begins with retrieval or reranking, and no dataset is for either; "
                "choose another sampler, or give a dataset one of these tasks"
            )
        second_pool = {i: self._select_second_rows(i, rows, seed) for i, rows in pool.items()}
        parts = []
        plan: Mapping[int, Pool] = {
            1: retrieval,
            2: {i: r for i, r in second_pool.items() if len(r)},
        }
        for stage, part in plan.items():
            datasets = self.cut_dataset_batches(
                part,
                make_seed(seed, "stage", stage),
                stage=stage,
                negatives="in_batch" if stage == 1 else "hard_only",
            )
            parts.append(Shuffled(datasets, make_seed(seed, "batches", stage)))
        return InOrder(parts)

    def _select_second_rows(self, info: DatasetInfo, rows: Rows, seed: int) -> Rows:
        """Return a dataset's rows in stage two."""
        if info.task not in RETRIEVAL_TASKS:
            return rows
        count = max(1, round(RETRIEVAL_SHARE * len(rows)))
        order = draw_order(len(rows), make_seed(seed, "sample", info.name))
        return take_rows(rows, order[:count])
