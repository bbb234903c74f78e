"""The gradient cache together with everything that a training may add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Auxiliary, DatasetInfo, Embeddings, Encoder, Loss, PerDataset
from emberge.contracts import Embedded
from emberge.encoding import EncodePlan, encode_and_backward
from emberge.training import FitOptions, PlannedBatch, PlannedPart
from emberge.training.batch_loss import Objective, compute_batch_loss
from emberge.training.batch_texts import TextSampling, draw_batch
from emberge.training.example_table import build_tables
from emberge_train import BatchShuffle, CoSENT, InfoNCE, Matryoshka
from safetensors.torch import load_file
from torch import nn

from tests.support import ranked_fit
from tests.support.exact import ExactEncoder
from tests.support.ranked_fit import Training
from tests.support.tolerance import EXACT, assert_exact, exactly, of_adamw
from tests.support.training_data import retrieval

EXPERTS = 4
# Steps follow gradients rather than their signs.
LEARNING_RATE, EPSILON = 1e-3, 1e-2


@dataclass(frozen=True, kw_only=True)
class OnLayers(Loss):
    """InfoNCE of each intermediate layer's embeddings (CoDiEmb, arXiv:2508.11442, in its simplest form)."""

    layers: tuple[float, ...] = (0.3, 0.6)

    def __call__(self, embeddings: Embeddings) -> torch.Tensor:
        inner = InfoNCE(temperature=0.2)
        values = [inner(embeddings.layers[layer]) for layer in self.layers]
        return torch.stack(values).sum()


class RoutedModel:
    """An encoder whose texts are routed to experts that do nothing, for the sake of their balance."""

    def __init__(self, inner: Encoder) -> None:
        self.inner = inner
        router = nn.Linear(inner.dimension, EXPERTS, bias=False)
        with torch.no_grad():
            size = router.weight.numel()
            router.weight.copy_(torch.linspace(-3, 5, size).view_as(router.weight).sin() * 4)
        self.module = nn.ModuleDict({"inner": inner.module, "router": router.double()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(
        self, features: Mapping[str, torch.Tensor], layers: Sequence[float] = ()
    ) -> Embedded:
        found = self.inner(features, layers)
        shares = self.module["router"](found.embeddings).softmax(dim=1)
        taken = nn.functional.one_hot(shares.argmax(1), EXPERTS).sum(0)
        counts = torch.cat([taken, taken.sum()[None]]).double()

        def balance(counts: torch.Tensor) -> torch.Tensor:
            """Experts · sum of load · mean probability (Fedus et al., 2021, arXiv:2101.03961)."""
            loads, total = counts[:-1] / counts[-1], counts[-1]
            return EXPERTS * (loads * shares.sum(0) / total).sum()

        return Embedded(found.embeddings, found.layers, Auxiliary(counts, balance))


@dataclass(frozen=True, kw_only=True)
class Routed(ExactEncoder):
    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts_tokens: bool = False
    ) -> Encoder:
        return RoutedModel(
            super().load(checkpoint, device=device, dtype=dtype, predicts_tokens=predicts_tokens)
        )  # type: ignore


def _with_lora(encoder: Encoder) -> Encoder:
    from peft import LoraConfig, inject_adapter_in_model

    trunk: Any = encoder.module.get_submodule("trunk")
    inject_adapter_in_model(LoraConfig(r=3, target_modules=["query", "value"]), trunk)
    torch.manual_seed(0)
    for name, parameter in encoder.module.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)
    assert sum(p.requires_grad for p in encoder.module.parameters()) == 12
    return encoder


ENCODERS: Mapping[str, Any] = {
    "plain": lambda encoder: encoder,
    "lora": _with_lora,
    "checkpointing": lambda encoder: encoder,
    "balance": RoutedModel,
    "lora, checkpointing, balance": lambda e: RoutedModel(_with_lora(e)),
}
CONTRAST = InfoNCE(temperature=0.2)
LOSSES: Mapping[str, tuple[Loss, ...]] = {
    "infonce": (CONTRAST,),
    "matryoshka": (
        Matryoshka(loss=(CONTRAST, CoSENT(unscored=True, cross_rank=True)), dims=(32, 16, 7)),
    ),
    "layers": (OnLayers(weight=0.5),),
    "all": (
        Matryoshka(loss=(CONTRAST,), dims=(32, 8)),
        OnLayers(weight=0.5),
        CoSENT(unscored=True, weight=0.2),
    ),
}
Gradients = dict[str, torch.Tensor]


class Case:
    """A batch of a dataset, and an encoder with losses that it goes through."""

    def __init__(self, model: Path, store: Path, kind: str, losses: tuple[Loss, ...]) -> None:
        self.encoder: Encoder = ENCODERS[kind](
            ExactEncoder(gradient_checkpointing="checkpointing" in kind).load(
                model, device="cpu", dtype="float32"
            )
        )
        self.encoder.module.double().train()
        data = retrieval()
        self.tables = build_tables([data], self.encoder, FitOptions(), store, lambda *_: None)
        info = DatasetInfo("find", "retrieval", 40)
        self.objective = Objective(PerDataset(default=losses), [info])
        self.batch = PlannedBatch(0, 0, 0, (PlannedPart("find", np.arange(20), True),))

    def gradients(self, budget: int, kept: int | None) -> tuple[float, Gradients, int]:
        drawn = draw_batch(self.batch, self.tables, TextSampling(positives=2), unique=True)
        passed = encode_and_backward(
            self.encoder,
            drawn.texts,
            partial(compute_batch_loss, drawn, objective=self.objective),
            EncodePlan(budget, kept, draws_random=False),
            seed=0,
            layers=self.objective.list_layers(["find"]),
        )
        found = dict(self.encoder.module.named_parameters())
        grads = {n: p.grad.clone() for n, p in found.items() if p.grad is not None}
        for parameter in found.values():
            parameter.grad = None
        return float(passed.loss), grads, passed.kept_tokens


# All losses with each encoder, and each kind of loss by itself.
TRIED = [*((kind, "all") for kind in ENCODERS), *(("plain", name) for name in [*LOSSES][:-1])]


@pytest.mark.parametrize(("kind", "losses"), TRIED)
def test_gradients_of_the_cache_are_those_of_one_pass(
    bert: Path, tmp_path: Path, kind: str, losses: str
) -> None:
    case = Case(bert, tmp_path, kind, LOSSES[losses])
    loss, plain, kept = case.gradients(10**6, None)
    assert kept > 400
    assert max(float(g.abs().max()) for g in plain.values()) > 1e-3
    for budget, keep in ((64, 0), (64, 200), (23, 0)):
        cached_loss, cached, held = case.gradients(budget, keep)
        assert held <= keep
        assert (held > 0) == (keep > 0)
        assert cached_loss == exactly(loss)
        assert_exact(cached, plain)


def test_the_balance_is_that_of_the_whole_batch(bert: Path, tmp_path: Path) -> None:
    without = Case(bert, tmp_path, "plain", LOSSES["infonce"])
    case = Case(bert, tmp_path, "balance", LOSSES["infonce"])
    drawn = draw_batch(case.batch, case.tables, TextSampling(positives=2), unique=True)
    with torch.no_grad():
        found = case.encoder(case.encoder.collate(drawn.texts))
        shares = case.encoder.module.get_submodule("router")(found.embeddings).softmax(1)
    loads = nn.functional.one_hot(shares.argmax(1), EXPERTS).double().mean(0)
    assert (loads > 0).sum() > 1, "one expert gets all, and the balance is trivial"
    balance = float(EXPERTS * (loads * shares.mean(0)).sum())
    for budget in (10**6, 40):
        added = case.gradients(budget, 0)[0] - without.gradients(budget, 0)[0]
        assert added == exactly(balance, size=1.0)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does_with_every_option(bert: Path, tmp_path: Path) -> None:
    """Matryoshka, layers, a local loss, a balance, a cache that keeps some chunks: split weights or not."""
    losses = (*LOSSES["all"][:2], CoSENT(unscored=True, weight=0.2, cross_rank=True))
    options: dict[str, Any] = {
        **{"learning_rate": LEARNING_RATE, "token_budget": 48, "kept_tokens": 96, "dropout": False},
        **{"max_steps": 4, "logging_steps": 1, "adam_epsilon": EPSILON, "positives": 2},
    }
    arguments = {
        "backbone": Routed(),
        "checkpoint": bert,
        "datasets": [retrieval()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=11)),),
        "losses": PerDataset(default=losses),
        "options": FitOptions(**options),
        "seed": 1,
    }
    found = {}
    for name, ranks, shard in (("one", 1, False), ("two", 2, False), ("split", 2, True)):
        training = Training(tmp_path / name, arguments, shard, exact=True)
        found[name] = ranked_fit.run([training], tmp_path / f"{name}.pkl", ranks)[0]["losses"]
    weights = {name: load_file(tmp_path / name / "out" / "model.safetensors") for name in found}
    apart = of_adamw(LEARNING_RATE, 4, EPSILON, EXACT)
    for name in ("two", "split"):
        assert found[name] == exactly(found["one"])
        for tensor, value in weights["one"].items():
            assert float((weights[name][tensor] - value).abs().max()) <= apart, tensor
