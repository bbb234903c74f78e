"""Datasets in proportion to their sizes and weights."""

from __future__ import annotations

from dataclasses import dataclass

from emberge_train.samplers.one_dataset import Shares


@dataclass(frozen=True, kw_only=True)
class Proportional(Shares):
    """Shares of the batches in proportion to each dataset's rows times its weight.

    Examples-proportional mixing (Raffel et al., 2020, arXiv:1910.10683, section 3.5.2): the share of a
    dataset of n rows is w · min(n, K) over the sum of this product for all datasets, with K the `size_limit`
    and w the dataset's weight. With neither option it is nearly `batch_shuffle`, but `batch_shuffle` takes
    each row exactly once an epoch, while this sampler keeps the shares.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {proportional: {size_limit: 10000}}
    """
