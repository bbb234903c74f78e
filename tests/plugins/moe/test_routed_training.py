"""The backbone `routed` in trainings: its losses, its noise, its numbers, and models without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    Backbone,
    CheckpointError,
    PerDataset,
    TokenisedText,
)
from emberge.encoding import BatchEmbeddings, EncodePlan, draws_random_numbers, encode_and_backward
from emberge.testing import check_backbone
from emberge.training import FitOptions, FitResult
from emberge_encoder import Lora, TextEncoder
from emberge_moe.routed_backbone import Routed
from emberge_moe.routed_encoder import RoutedEncoder
from emberge_train import BatchShuffle, InfoNCE
from safetensors.torch import load_file

from tests.support import ranked_fit
from tests.support.exact import ExactEncoder
from tests.support.fitting import run_fit
from tests.support.json_files import edit
from tests.support.ranked_fit import Training
from tests.support.routed_models import NATIVE, ExactRouted, native, routed
from tests.support.tolerance import EXACT, exactly, of_adamw
from tests.support.training_data import retrieval

TEXTS = [
    "sort a list",
    "the music",
    "open the file and read the first row of a table",
    "a bank",
] * 3
# Gates of transformers' own models are float32 whatever the weights are.
NEAR = 1e-6
Gradients = dict[str, torch.Tensor]


def _write(folder: Path, kind: str, **changes: Any) -> Path:
    return (native if kind in NATIVE else routed)(folder, kind, **changes)


def _objective(found: BatchEmbeddings) -> torch.Tensor:
    return (found.embeddings @ found.embeddings.T).exp().mean()


def _load(folder: Path, *, train: bool = False, recompute: bool = False, **options: Any) -> Any:
    inner = ExactEncoder(gradient_checkpointing=recompute)
    encoder = ExactRouted(inner=inner, **options).load(folder, device="cpu", dtype="float32")
    encoder.module.train(train)
    return encoder


def _tokens(encoder: Any) -> list[TokenisedText]:
    return list(encoder.tokenise(TEXTS, prompt="", max_length=None))


def _gradients(
    encoder: Any, budget: int, kept: int | None, *, dropout: bool = False
) -> tuple[float, Gradients]:
    encoder.module.zero_grad()
    plan = EncodePlan(budget, kept, draws_random=dropout)
    passed = encode_and_backward(encoder, _tokens(encoder), _objective, plan, seed=5)
    named = encoder.module.named_parameters()
    return float(passed.loss), {n: p.grad.clone() for n, p in named if p.grad is not None}


ROUTED_LAYERS = {"bert": 2, "qwen3_moe": 1}


@pytest.mark.parametrize("kind", ["bert", *NATIVE])
def test_a_batch_in_chunks_has_the_losses_of_the_whole_batch(kind: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "model", kind)
    encoder = _load(folder, balance=0.7)
    loss, plain = _gradients(encoder, 10**6, None)
    routers = [plain[n] for n in plain if n.endswith((".router.weight", ".mlp.gate.weight"))]
    assert len(routers) == ROUTED_LAYERS.get(kind, 3)
    assert all(gradient.count_nonzero() for gradient in routers)
    for recompute in (False, True):
        again = _load(folder, recompute=recompute, balance=0.7)
        for budget, kept in ((64, 0), (64, 60), (20, 0)):
            found, cached = _gradients(again, budget, kept)
            assert found == pytest.approx(loss, rel=NEAR, abs=NEAR)
            largest = max(float(g.abs().max()) for g in plain.values())
            for name, value in cached.items():
                torch.testing.assert_close(value, plain[name], rtol=0, atol=NEAR * largest)


@pytest.mark.slow
def test_two_ranks_with_sharded_weights_train_like_one(tmp_path: Path) -> None:
    folder = routed(tmp_path / "model", "bert")
    options: dict[str, Any] = {
        **{"learning_rate": 1e-3, "token_budget": 48, "kept_tokens": 96, "dropout": False},
        **{"max_steps": 3, "logging_steps": 1, "adam_epsilon": 1e-2},
    }
    arguments = {
        "backbone": ExactRouted(balance=0.7),
        "checkpoint": folder,
        "datasets": [retrieval()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=7)),),
        "losses": PerDataset(default=(InfoNCE(temperature=0.2),)),
        "options": FitOptions(**options),
        "seed": 1,
    }
    found = {}
    for name, ranks, shard in (("one", 1, False), ("two", 2, False), ("split", 2, True)):
        training = Training(tmp_path / name, arguments, shard, exact=True)
        found[name] = ranked_fit.run([training], tmp_path / f"{name}.pkl", ranks)[0]
    apart = of_adamw(1e-3, 3, 1e-2, EXACT)
    weights = {name: load_file(tmp_path / name / "out" / "model.safetensors") for name in found}
    for name in ("two", "split"):
        assert found[name]["losses"] == exactly(found["one"]["losses"])
        for tensor, value in weights["one"].items():
            assert float((weights[name][tensor] - value).abs().max()) <= apart, tensor
        # Counts are whole numbers, and the same however they are added up.
        maps = [one["result"].figures[0].heat_map for one in (found[name], found["one"])]
        assert maps[0] == maps[1]


def test_randomness_in_a_routers_pass_is_detected(tmp_path: Path) -> None:
    plain = native(tmp_path / "plain", "mixtral")
    noisy = native(tmp_path / "noisy", "mixtral", router_jitter_noise=0.2)
    for folder, draws in ((plain, False), (noisy, True)):
        before = torch.get_rng_state()
        encoder = _load(folder, train=True)
        assert draws_random_numbers(encoder) == draws
        encoder.module.eval()
        assert not draws_random_numbers(encoder)
        assert torch.equal(torch.get_rng_state(), before)


def _fit(model: Path, root: Path, backbone: Backbone, **given: Any) -> FitResult:
    options: dict[str, Any] = {"max_steps": 4, "logging_steps": 2, "token_budget": 80}
    return run_fit(
        backbone=backbone,
        checkpoint=model,
        datasets=[retrieval()],
        sampler=(BatchShuffle(batch_size=PerDataset(default=8)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.1),)),
        options=FitOptions(**{**options, **given.pop("options", {})}),
        folder=root / "out",
        work=root / "work",
        seed=0,
        **given,
    )


@pytest.mark.parametrize("kind", ["jina_embeddings_v3", "qwen3_moe"])
def test_a_trained_model_keeps_its_tensors_names(kind: str, tmp_path: Path) -> None:
    model = _write(tmp_path / "model", kind)
    before = load_file(model / "model.safetensors")
    options = {"learning_rate": 1e-2, "max_steps": 2}
    _fit(model, tmp_path, Routed(inner=TextEncoder()), options=options)
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    experts = {name for name in after if ".experts." in name}
    assert experts
    assert experts <= moved
    again = Routed(inner=TextEncoder()).load(tmp_path / "out", device="cpu", dtype="float32")
    with torch.no_grad():
        assert again(again.collate(_tokens(again))).embeddings.isfinite().all()


def test_loads_are_logged_and_shown_in_a_figure(tmp_path: Path) -> None:
    logged: dict[int, dict[str, float]] = {}
    model = routed(tmp_path / "model")
    result = _fit(
        model,
        tmp_path,
        Routed(inner=TextEncoder()),
        metric=lambda name, value, at: logged.setdefault(at, {}).update({name: value}),
    )
    for step in (2, 4):
        for layer in (1, 2):
            shares = [logged[step][f"load/{layer}/{expert}"] for expert in range(4)]
            assert sum(shares) == pytest.approx(2)
            assert 0 < logged[step][f"load_entropy/{layer}"] <= 1
            assert logged[step][f"dead_experts/{layer}"] == sum(s < 0.01 for s in shares)
            assert 0.5 < logged[step][f"gate_sum/{layer}"] < 1
    (figure,) = result.figures
    assert figure.heat_map.columns == ["2", "4"]
    first = dict(zip(figure.heat_map.rows, figure.heat_map.values, strict=True))
    assert first["layer 2, expert 3"] == [logged[step]["load/2/3"] for step in (2, 4)]


def test_a_resumed_training_ends_with_the_same_numbers(tmp_path: Path) -> None:
    model = routed(tmp_path / "model")
    options = {"options": {"max_steps": 7, "logging_steps": 3, "save_steps": 2}}
    backbone = Routed(inner=TextEncoder())
    whole = _fit(model, tmp_path / "whole", backbone, **options)

    def stop(done: int, _: int, unit: str, *__: object) -> None:
        if unit == "steps" and done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _fit(model, tmp_path / "broken", backbone, progress=stop, **options)
    again = _fit(model, tmp_path / "broken", backbone, **options)
    assert again.figures == whole.figures
    names = [tmp_path / name / "out" / "model.safetensors" for name in ("whole", "broken")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_a_routed_model_without_the_backbone_is_refused_before_work(tmp_path: Path) -> None:
    model = routed(tmp_path / "model")
    with pytest.raises(CheckpointError) as caught:
        _fit(model, tmp_path, TextEncoder())
    assert str(model / "config.json") in str(caught.value)
    assert "backbone: {routed: " in str(caught.value)
    assert "balance: 0" in str(caught.value)
    assert not (tmp_path / "work").exists()
    assert TextEncoder().describe(model).training_problems == (str(caught.value),)
    assert TextEncoder().describe(model).problems == ()  # it embeds, and is measured
    off = Routed(inner=TextEncoder(), balance=0.0)
    assert off.describe(model).problems == off.describe(model).training_problems == ()


def test_with_a_balance_of_zero_nothing_is_added(tmp_path: Path) -> None:
    model = routed(tmp_path / "model")
    off = _gradients(_load(model, balance=0.0), 40, 0)
    plain = ExactEncoder().load(model, device="cpu", dtype="float32")
    plain.module.eval()
    loss, gradients = _gradients(plain, 40, 0)
    assert off[0] == loss
    assert all(torch.equal(off[1][name], gradients[name]) for name in gradients)
    assert gradients.keys() == off[1].keys()


def test_states_and_names_are_those_of_the_inner_encoder(tmp_path: Path) -> None:
    encoder = _load(routed(tmp_path / "model"))
    assert isinstance(encoder, RoutedEncoder)
    plain = ExactEncoder().load(tmp_path / "model", device="cpu", dtype="float32")
    plain.module.eval()
    features = encoder.collate(_tokens(encoder))
    with torch.no_grad():
        assert torch.equal(encoder.states(features), plain.states(features))
    assert encoder.stored_names() == plain.stored_names()
    assert encoder.dimension == plain.dimension
    assert encoder.tokenizer_fingerprint == plain.tokenizer_fingerprint
    assert encoder.prompts == plain.prompts


@pytest.mark.parametrize("kind", ["xlm-roberta", "qwen3_moe"])
def test_the_backbone_keeps_the_laws(kind: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "model", kind)
    if kind in NATIVE:
        edit(folder, "config.json", experts_implementation="grouped_mm")
    check_backbone(Routed(inner=TextEncoder()), folder)


def test_an_adapter_can_be_trained_on_a_routed_model(tmp_path: Path) -> None:
    model = routed(tmp_path / "model")
    inner = TextEncoder(lora=Lora(rank=2))
    _fit(model, tmp_path, Routed(inner=inner), options={"max_steps": 2, "learning_rate": 1e-2})
    factors = load_file(tmp_path / "out" / "adapter_model.safetensors")
    moved = {name for name, value in factors.items() if "lora_B" in name and value.count_nonzero()}
    assert any(".experts.3.intermediate.dense." in name for name in moved)
