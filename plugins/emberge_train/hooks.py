"""Training: the `train` step, its losses and samplers, and evaluation during a training."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_samplers() -> Mapping[str, str]:
    from emberge_train.samplers import samplers

    return samplers()


@hookimpl
def register_losses() -> Mapping[str, str]:
    from emberge_train.losses import losses

    return losses()


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"train": "emberge_train.train_step:Train"}
