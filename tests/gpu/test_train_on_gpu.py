"""A GPU learns what a CPU learns: in float32 and bfloat16, with split weights, killed and continued."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from emberge import Backbone, PerDataset
from emberge.encoding import BatchEmbeddings, EncodePlan, encode_and_backward
from emberge.ranks import (
    SINGLE_RANK,
    RankGroup,
    clip_gradients,
    gather_on_cpu,
    gather_weights,
    is_split,
    split_weights,
)
from emberge.training import FitOptions, FitResult
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.fitting import run_fit
from tests.support.training_data import retrieval, similarity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda:0"
RECIPE = """\
seed: 1
steps:
  tuned:
    train:
      model: {model}
      data: [{{path: {data}, task: retrieval}}]
      sampler: [{{batch_shuffle: {{batch_size: 7}}}}]
      loss: {{infonce: {{temperature: 0.1}}}}
      max_steps: 12
      learning_rate: 1.0e-4
      precision: float32
      dropout: false
      logging_steps: 1
"""


class _Killed(BaseException):
    pass


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Float32 products as exact as a CPU's."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def _fit(
    model: Path,
    root: Path,
    device: str,
    progress: Callable[..., None] = lambda *_: None,
    backbone: Backbone | None = None,
    **options: Any,
) -> FitResult:
    given = {"precision": "float32", "dropout": False, "learning_rate": 1e-4, **options}
    return run_fit(
        backbone=backbone or TextEncoder(),
        checkpoint=model,
        datasets=[retrieval(), similarity()],
        sampler=(BatchShuffle(batch_size=PerDataset(default=8)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}),
        options=FitOptions(epochs=2, token_budget=80, save_steps=3, **given),
        folder=root / "out",
        work=root / "work",
        seed=0,
        device=device,
        progress=progress,
    )


def _losses(result: FitResult) -> list[float]:
    return [loss for _, loss in result.step_losses]


def _weights(root: Path) -> bytes:
    return (root / "out" / "model.safetensors").read_bytes()


def test_a_gpu_has_the_losses_of_a_cpu(model: Path, tmp_path: Path) -> None:
    gpu = _losses(_fit(model, tmp_path / "gpu", DEVICE))
    assert len(gpu) == 16
    assert gpu == pytest.approx(_losses(_fit(model, tmp_path / "cpu", "cpu")), rel=1e-3, abs=1e-4)


def test_bfloat16_learns_the_same_but_for_its_rounding(model: Path, tmp_path: Path) -> None:
    half = _losses(_fit(model, tmp_path / "half", DEVICE, precision="auto"))
    engine = json.loads((tmp_path / "half" / "work" / "machine.json").read_text())
    assert engine["precision"] == "bfloat16"
    plain = _losses(_fit(model, tmp_path / "plain", DEVICE))
    assert half != plain
    assert half == pytest.approx(plain, rel=0.1, abs=0.05)
    kept = load_file(tmp_path / "half" / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_training_killed_on_a_gpu_ends_in_the_same_bytes(
    model: Path, tmp_path: Path, precision: str
) -> None:
    def stop(done: int, *_: object) -> None:
        if done == 8:
            raise _Killed

    given = {"precision": precision, "dropout": True}
    _fit(model, tmp_path / "whole", DEVICE, **given)
    with pytest.raises(_Killed):
        _fit(model, tmp_path / "cut", DEVICE, stop, **given)
    _fit(model, tmp_path / "cut", DEVICE, **given)
    assert _weights(tmp_path / "cut") == _weights(tmp_path / "whole")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankGroup]:
    """A group of one rank, which goes the way of many."""
    store = dist.HashStore()
    backend = "cpu:gloo,cuda:nccl" if DEVICE.startswith("cuda") else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield RankGroup(device=DEVICE, store=store)
    finally:
        dist.destroy_process_group()


def _gradients(
    model: Path, ranks: RankGroup, split: bool, autocast: torch.dtype | None
) -> tuple[float, float, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Loss, norm, gradients after they were cut, and weights as they would be saved."""
    encoder = TextEncoder().load(model, device=DEVICE, dtype="float32")
    if split:
        split_weights(encoder, ranks)
    words = [f"{row.anchor} {row.positives[0]}" for row in retrieval(24).rows]
    texts = encoder.tokenise(words, prompt="", max_length=None)

    def objective(encoded: BatchEmbeddings) -> torch.Tensor:
        similar = encoded.embeddings @ encoded.embeddings.T
        return torch.nn.functional.cross_entropy(
            similar / 0.1, torch.arange(len(words), device=similar.device).roll(1)
        )

    plan = EncodePlan(
        60,
        kept_tokens=120,
        autocast=autocast,
        draws_random=False,
        ranks=ranks,
        splits_weights=split,
    )
    passed = encode_and_backward(encoder, texts, objective, plan, seed=0)
    named = dict(encoder.module.named_parameters())
    assert any(map(is_split, named.values())) == split
    norm = float(clip_gradients(list(named.values()), 0.5))
    grads = {name: gather_on_cpu(p.grad) for name, p in named.items() if p.grad is not None}
    with gather_weights(encoder.module):
        saved = {name: t.detach().cpu().clone() for name, t in encoder.module.state_dict().items()}
    return float(passed.loss), norm, grads, saved


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_split_weights_have_the_gradients_of_whole_ones(
    model: Path, group: RankGroup, autocast: torch.dtype | None
) -> None:
    loss, norm, grads, weights = _gradients(model, SINGLE_RANK, False, autocast)
    split_loss, split_norm, split_grads, split_weights_ = _gradients(model, group, True, autocast)
    assert norm > 0.5
    assert split_loss == pytest.approx(loss, rel=1e-5)
    assert split_norm == pytest.approx(norm, rel=1e-4)
    assert split_grads.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(split_grads[name], grad, atol=1e-5, rtol=1e-3)
    assert all(torch.equal(split_weights_[name], weights[name]) for name in weights)


def _run(root: Path, name: str, *words: str) -> list[float]:
    """Losses of the recipe, as the command line logs them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    recipe, out = str(root / "recipe.yaml"), root / name
    line = [sys.executable, "-m", "emberge", "run", recipe, "--out", str(out)]
    if "torchrun" in words:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1"]
        line = [*launcher, "--master_port", port, *line[1:]]
    line += [word for word in words if word != "torchrun"]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    log = (out / "tuned" / "metrics.jsonl").read_text().splitlines()
    return [row["value"] for row in map(json.loads, log) if row["name"] == "loss"]


@pytest.fixture(scope="module")
def written(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe."""
    root = tmp_path_factory.mktemp("recipe")
    rows = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval(30).rows]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "recipe.yaml").write_text(RECIPE.format(model=bert, data=root / "pairs.jsonl"))
    return root


def test_one_process_of_torchrun_on_a_gpu_has_the_losses_of_a_cpu(written: Path) -> None:
    found = _run(written, "launched", "torchrun", "--devices", DEVICE)
    assert len(found) == 12
    assert found == pytest.approx(_run(written, "cpu", "--devices", "cpu"), rel=1e-3, abs=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("shard", [(), ("--shard",)])
def test_two_gpus_have_the_losses_of_one(written: Path, shard: tuple[str, ...]) -> None:
    two = _run(written, f"two{len(shard)}", "--ranks", "2", *shard)
    one = _run(written, f"one{len(shard)}", "--devices", DEVICE)
    assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
