"""Training: the `train` step, its losses and samplers, and evaluation during a training."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_samplers() -> Mapping[str, str]:
    return {
        "batch_shuffle": "emberge_train.samplers.one_dataset:BatchShuffle",
        "dataset_sequential": "emberge_train.samplers.one_dataset:DatasetSequential",
        "mixture": "emberge_train.samplers.mixture:Mixture",
        "proportional": "emberge_train.samplers.proportional:Proportional",
        "task_sequential": "emberge_train.samplers.one_dataset:TaskSequential",
        "two_stage": "emberge_train.samplers.two_stage:TwoStage",
    }


@hookimpl
def register_losses() -> Mapping[str, str]:
    return {
        "infonce": "emberge_train.losses.infonce:InfoNCE",
        "cosent": "emberge_train.losses.cosent:CoSENT",
        "embedding_distillation": ("emberge_train.losses.distillation:EmbeddingDistillation"),
        "similarity_distillation": ("emberge_train.losses.distillation:SimilarityDistillation"),
        "margin_mse": "emberge_train.losses.score_distillation:MarginMSE",
        "kl_distillation": "emberge_train.losses.score_distillation:KLDistillation",
        "binary_cross_entropy": "emberge_train.losses.binary_cross_entropy:BinaryCrossEntropy",
        "flops": "emberge_train.losses.flops:FLOPS",
        "keep_space": "emberge_train.losses.distillation:KeepSpace",
        "matryoshka": "emberge_train.losses.matryoshka:Matryoshka",
        "mlm": "emberge_train.losses.token_losses:MLM",
        "mntp": "emberge_train.losses.token_losses:MNTP",
        "causal_lm": "emberge_train.losses.token_losses:CausalLM",
    }


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"train": "emberge_train.train_step:Train"}
