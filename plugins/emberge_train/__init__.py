"""Training: the `train` step, its losses and samplers, and evaluation during a training."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Loss, Sampler, Step, TokenLoss, hookimpl


@hookimpl
def register_samplers() -> Mapping[str, type[Sampler]]:
    from emberge_train.samplers import samplers

    return samplers()


@hookimpl
def register_losses() -> Mapping[str, type[Loss] | type[TokenLoss]]:
    from emberge_train.losses import losses

    return losses()


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_train.train_step import Train

    return {"train": Train}
