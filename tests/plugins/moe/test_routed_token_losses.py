"""Token losses of models with routers, whose balance loss is that of the whole batch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge import (
    CheckpointError,
    PerDataset,
    load_plugins,
)
from emberge.contracts import TokenPredictor
from emberge.encoding import EncodePlan, PassResult, corrupt_text, predict_and_backward
from emberge.training import FitOptions, FitResult, find_prediction_problems
from emberge_encoder import TextEncoder
from emberge_moe.routed_backbone import Routed
from emberge_train import MLM, InfoNCE
from safetensors.torch import load_file

from tests.support.exact import ExactEncoder
from tests.support.recipe_runs import run_checked
from tests.support.routable import dense
from tests.support.routed_models import NATIVE, ExactRouted, native, routed
from tests.support.token_training import (
    MASKED,
    OPTIONS,
    Together,
    by_hand,
    fit_tokens,
    losses_of,
    windows_of,
)
from tests.support.tolerance import assert_exact, exactly
from tests.support.training_data import InMemory, retrieval, texts

BALANCE = 0.7
# Gates of transformers' own models are float32 whatever the weights are.
NEAR = 1e-6
ROUTERS = {"qwen3_moe": "mlp.gate"}


def _write(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    return (native if kind in NATIVE else routed)(folder, kind, head=True, **changes)


def _backbone(*, recompute: bool = False, **options: Any) -> ExactRouted:
    given = {"balance": BALANCE, **options}
    return ExactRouted(inner=ExactEncoder(gradient_checkpointing=recompute), **given)


def _fit(model: Path, root: Path, **given: Any) -> FitResult:
    return fit_tokens(model, root, backbone=_backbone(), **given)


class Taken:
    """Losses of a model's routers, by formulas over their outputs in the pass before."""

    def __init__(self, model: torch.nn.Module, path: str) -> None:
        self.logits: dict[str, torch.Tensor] = {}
        for name, module in model.named_modules():
            if name.endswith(f".{path}"):
                module.register_forward_hook(
                    lambda _, __, out, name=name: self.logits.update({name: out[0]})
                )

    def __call__(self, mask: torch.Tensor) -> torch.Tensor:
        """E · Σ r/2 · p without padding, averaged over layers."""
        there, parts = mask.flatten().bool(), []
        for logits in (value.double()[there] for value in self.logits.values()):
            shares = logits.softmax(1)
            loads = torch.zeros_like(shares).scatter(1, shares.topk(2).indices, 1.0).mean(0)
            parts.append(BALANCE * shares.shape[1] * (loads / 2 * shares.mean(0)).sum())
        return torch.stack(parts).mean()


@pytest.mark.parametrize("kind", ["bert", "qwen3_moe"])
def test_a_token_training_equals_a_loop_written_by_hand(kind: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "model", kind)
    found = _fit(folder, tmp_path)
    name = "AutoModelForCausalLM" if kind in NATIVE else "AutoModelForMaskedLM"
    loader = getattr(transformers, name)
    model = loader.from_pretrained(folder).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    own = Taken(model, ROUTERS.get(kind, "router"))
    expected = by_hand(model, tokenizer, windows_of(tokenizer, texts()), own)
    assert len(own.logits) == (1 if kind in NATIVE else 2)
    assert losses_of(found) == pytest.approx(expected, rel=NEAR)
    assert expected[-1] < expected[0]


def _passed(
    folder: Path, budget: int, kept: int | None, *, recompute: bool = False, **options: Any
) -> tuple[PassResult, dict[str, torch.Tensor]]:
    """A batch's pass, and its gradients."""
    backbone = _backbone(recompute=recompute, **options)
    encoder: Any = backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    encoder.module.eval()
    written = [row.anchor for row in texts(12).rows]
    tokens = encoder.tokenise(written, prompt="", max_length=None)
    given = [corrupt_text(encoder, text, MASKED, 3) for text in tokens]
    passed = predict_and_backward(encoder, given, MASKED, EncodePlan(budget, kept), seed=5)
    named = encoder.module.named_parameters()
    return passed, {n: p.grad for n, p in named if p.grad is not None}


@pytest.mark.parametrize("kind", ["bert", "jina_embeddings_v3"])
def test_token_losses_in_chunks_are_those_of_the_whole_batch(kind: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "model", kind)
    whole, plain = _passed(folder, 10**6, None)
    assert whole.kept_tokens == whole.padded_tokens
    assert all(plain[name].count_nonzero() for name in plain if name.endswith("router.weight"))
    for recompute in (False, True):
        for budget, kept in ((64, None), (64, 0), (200, 250)):
            found, gradients = _passed(folder, budget, kept, recompute=recompute)
            assert float(found.loss) == exactly(float(whole.loss))
            assert_exact(gradients, plain)
            assert found.counts is not None
            assert torch.equal(found.counts[:8], whole.counts[:8])  # type: ignore[index]
            assert found.kept_tokens <= (found.padded_tokens if kept is None else kept)


def test_the_balance_term_is_added_once_and_without_padding(tmp_path: Path) -> None:
    folder = _write(tmp_path / "model")
    without, doubled = (
        float(_passed(folder, 64, 0, balance=factor)[0].loss) for factor in (0.0, 2.0)
    )
    encoder: Any = _backbone().load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    assert isinstance(encoder, TokenPredictor)
    assert encoder.has_auxiliary
    encoder.module.eval()
    tokens = encoder.tokenise([row.anchor for row in texts(12).rows], prompt="", max_length=None)
    given = [corrupt_text(encoder, text, MASKED, 3).text for text in tokens]
    features = encoder.collate(given)
    own = Taken(encoder.module, "router")
    with torch.no_grad():
        states, auxiliary = encoder.states_and_auxiliary(features)
        assert torch.equal(states, encoder.states(features))
        term = float(auxiliary.term(auxiliary.counts))
    assert int(features["attention_mask"].sum()) < features["attention_mask"].numel()
    assert float(own(features["attention_mask"])) == exactly(term)
    assert BALANCE * (doubled - without) / 2 == exactly(term, size=doubled)


def test_several_losses_add_the_balance_term_once(tmp_path: Path) -> None:
    """Two losses that score no place add nothing, so that the mean of their terms is left."""
    model = _write(tmp_path / "model")
    options = FitOptions(**OPTIONS | {"epochs": None, "max_steps": 1})

    def first(*losses: MLM) -> float:
        given: dict[str, Any] = {"options": options, "losses": PerDataset(default=losses)}
        return losses_of(_fit(model, tmp_path / str(len(list(tmp_path.iterdir()))), **given))[0]

    rare = MLM(share=1e-9)
    once = first(rare)
    assert once > BALANCE / 2
    assert first(rare, dataclasses.replace(rare, weight=3.0)) == exactly(once)


def test_a_mixed_step_is_the_mean_by_rows_and_counts_both_loads(tmp_path: Path) -> None:
    folder = _write(tmp_path / "model")
    data: list[InMemory] = [texts(12), retrieval(16)]
    losses: Any = PerDataset(default=(InfoNCE(),), by_task={"text": (MASKED,)})
    found, loads = {}, {}
    for names in (("read",), ("find",), ("read", "find")):
        logged: dict[str, float] = {}
        result = _fit(
            folder,
            tmp_path / "+".join(names),
            datasets=data,
            losses=losses,
            sampler=(Together(names=names),),
            options=FitOptions(**OPTIONS | {"epochs": 1}),
            metric=lambda name, value, _, logged=logged: logged.update({name: value}),
        )
        found[names], loads[names] = losses_of(result)[0], logged["load/1/0"]
    read, find, both = found.values()
    assert both == exactly(read * 4 / 12 + find * 8 / 12)
    assert min(list(loads.values())[:2]) < loads["read", "find"] < max(list(loads.values())[:2])


RECIPE = """
steps:
  routed:
    upcycle: {model: ./dense, experts: 4}
  trained:
    train:
      model: $routed
      data: [{path: ./texts.jsonl, task: text}]
      loss: mlm
      sampler: {batch_shuffle: {batch_size: 4}}
      backbone: {routed: {inner: {text_encoder: {attention: ATTENTION}}}}
      learning_rate: 1e-2
      max_steps: 2
"""


@pytest.mark.parametrize(
    "kind", ["bert", "qwen3", pytest.param("jina_embeddings_v3", marks=pytest.mark.slow)]
)
def test_a_head_survives_upcycling_training_and_loading(kind: str, tmp_path: Path) -> None:
    source = dense(tmp_path / "dense", kind, head=True)
    rows = [json.dumps({"text": row.anchor}) for row in texts(12).rows]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    attention = "bidirectional" if kind == "qwen3" else "as is"
    made = run_checked(tmp_path, RECIPE.replace("ATTENTION", attention), load_plugins())
    before, after = (load_file(made[n] / "model.safetensors") for n in ("routed", "trained"))
    assert before.keys() == after.keys()
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert not [name for name in still if "experts" in name or "head" in name or "cls" in name]
    assert len(load_file(source / "model.safetensors").keys()) < len(before)
    begun, config = (
        json.loads((made[name] / "config.json").read_text()) for name in ("routed", "trained")
    )
    assert config["upcycling"] == begun["upcycling"]  # a merge knows siblings by it
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        made["trained"], output_loading_info=True
    )
    assert not any(report.values())
    assert config["architectures"] == [type(model).__name__]
    encoder: Any = Routed(inner=TextEncoder()).load(
        made["trained"], device="cpu", dtype="float32", predicts_tokens=True
    )
    encoder.module.eval()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        ours = encoder.logits(encoder.states({"input_ids": ids}))
        theirs = model.eval()(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs)


def test_a_model_without_a_head_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = routed(tmp_path / "model")
    backbone = Routed(inner=TextEncoder())
    with pytest.raises(CheckpointError, match=rf"{folder}.*fresh_head: true"):
        backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    fresh = Routed(inner=TextEncoder(fresh_head=True))
    assert not list(find_prediction_problems([MASKED], fresh, folder))
    assert not list(find_prediction_problems([MASKED], backbone, _write(tmp_path / "whole")))
