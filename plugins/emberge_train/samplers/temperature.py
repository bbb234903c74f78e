"""Datasets by a power of their sizes, between proportional and even."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Positive

from emberge_train.samplers.one_dataset import Shares


@dataclass(frozen=True, kw_only=True)
class Temperature(Shares):
    """Shares that follow a power of each dataset's size, so that small datasets are seen more often.

    The share of a dataset of n rows is w · n^(1/T) over the sum of this term for all datasets
    (temperature-scaled mixing: Raffel et al., 2020, arXiv:1910.10683; the power α = 1/T of Conneau & Lample,
    2019, arXiv:1901.07291). `temperature` is T: with 1 shares are those of `proportional`, with 2 they follow
    the square root of the size, and the higher T, the more even the shares.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {temperature: {temperature: 2.0}}
    """

    temperature: Positive = 2.0

    def exponent(self) -> float:
        return 1 / self.temperature
