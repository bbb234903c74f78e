"""Training: the `train` step, its losses and samplers, and evaluation during a training."""

from __future__ import annotations

from emberge import make_hook

register_samplers = make_hook(
    batch_shuffle="emberge_train.samplers.one_dataset_samplers:BatchShuffle",
    dataset_sequential="emberge_train.samplers.one_dataset_samplers:DatasetSequential",
    mixture="emberge_train.samplers.mixture:Mixture",
    proportional="emberge_train.samplers.proportional:Proportional",
    task_sequential="emberge_train.samplers.one_dataset_samplers:TaskSequential",
    two_stage="emberge_train.samplers.two_stage:TwoStage",
)
register_losses = make_hook(
    infonce="emberge_train.losses.infonce:InfoNCE",
    cosent="emberge_train.losses.cosent:CoSENT",
    embedding_distillation="emberge_train.losses.distillation:EmbeddingDistillation",
    margin_mse="emberge_train.losses.score_distillation:MarginMSE",
    kl_distillation="emberge_train.losses.score_distillation:KLDistillation",
    binary_cross_entropy="emberge_train.losses.binary_cross_entropy:BinaryCrossEntropy",
    flops="emberge_train.losses.flops:FLOPS",
    keep_space="emberge_train.losses.distillation:KeepSpace",
    matryoshka="emberge_train.losses.matryoshka:Matryoshka",
    spread_out="emberge_train.losses.spread_out:SpreadOut",
    mlm="emberge_train.losses.token_losses:MLM",
    mntp="emberge_train.losses.token_losses:MNTP",
    causal_lm="emberge_train.losses.token_losses:CausalLM",
)
register_steps = make_hook(train="emberge_train.train_step:Train")
