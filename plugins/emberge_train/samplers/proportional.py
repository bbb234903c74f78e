"""Datasets in proportion to their sizes and weights."""

from __future__ import annotations

from dataclasses import dataclass

from emberge_train.samplers.one_dataset import Shares


@dataclass(frozen=True, kw_only=True)
class Proportional(Shares):
    """Shares of the batches in proportion to each dataset's rows times its weight.

    The share of a dataset of n rows is w · n over the sum of this product for all datasets, with w the
    dataset's weight. Without weights it is nearly `batch_shuffle`, but `batch_shuffle` takes each row exactly
    once an epoch, while this sampler keeps the shares.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {proportional: {weight: {by_task: {sts: 2}}}}
    """
