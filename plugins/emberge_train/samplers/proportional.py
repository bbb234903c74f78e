"""Datasets in proportion to their sizes and weights."""

from __future__ import annotations

from dataclasses import dataclass

from emberge_train.samplers.one_dataset import Shares


@dataclass(frozen=True, kw_only=True)
class Proportional(Shares):
    """Shares of the batches in proportion to each dataset's rows times its weight.

    Examples-proportional mixing (Raffel et al., 2020, arXiv:1910.10683, section 3.5.2): the share of a
    dataset of n rows is w · min(n, K) over the sum of these, K being `size_limit` and w its weight. With
    neither it is nearly `batch_shuffle`; there each row comes once an epoch, here shares are what counts.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {proportional: {size_limit: 10000}}
    """
