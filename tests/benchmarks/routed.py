"""A routed feed-forward block, top-2 of 8 experts, beside a dense one of twice an expert's width.

OMP_NUM_THREADS=1 python -m pytest -m benchmark -s tests/benchmarks/routed.py

Both do the same multiplications for a token. 2,048 tokens, forward and backward, float32, and bfloat16 on a
GPU if there is one; rounds of both in turn, medians of each.

Routed / dense in CPU seconds, one thread of a shared 2-core EPYC (AVX-512), BERT's block and a gated one
(Nomic BERT's): 768 wide 1.01 and 0.98, 384 wide 1.07 and 1.05; in wall time, beside other work, 1.02 to 1.08.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from emberge_moe import EmbergeRoutedConfig, EmbergeRoutedModel
from torch import nn
from transformers import BertConfig, NomicBertConfig

TOKENS, ROUNDS, LIMIT = 2048, 15, 1.25
SIZES = {"base": (768, 3072), "small": (384, 1536)}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = {"bert": BertConfig, "nomic_bert": NomicBertConfig}


def _models(kind: str, size: str) -> tuple[nn.Module, nn.Module]:
    """A routed and a dense feed-forward block."""
    hidden, width = SIZES[size]
    common = {"vocab_size": 8, "hidden_size": hidden, "num_attention_heads": 4}
    dense, narrow = (
        KINDS[kind](**common, num_hidden_layers=1, intermediate_size=n) for n in (2 * width, width)
    )
    routed, plain = (
        EmbergeRoutedModel(
            EmbergeRoutedConfig(inner=inner.to_dict(), routed_layers=layers, num_experts=8, top_k=2)
        )
        for inner, layers in ((narrow, [0]), (dense, []))
    )
    if kind == "bert":
        block = plain.get_submodule("encoder.layer.0")
        chain = nn.Sequential(block.intermediate, block.output.dense)  # type: ignore[arg-type,union-attr]
        return routed.get_submodule("encoder.layer.0.intermediate"), chain
    return routed.get_submodule("layers.0.mlp"), plain.get_submodule("layers.0.mlp")


def _step(model: nn.Module, states: torch.Tensor, pull: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        states.grad = None
        for parameter in parameters:
            parameter.grad = None
        model(states).backward(pull)
        if states.is_cuda:
            torch.cuda.synchronize()

    parameters = [*model.parameters()]
    return run


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start[0], time.process_time() - start[1]


@pytest.mark.benchmark
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_routed_beside_dense(kind: str, size: str, device: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    works = []
    for model in _models(kind, size):
        holder = getattr(model, "_module", model)
        holder.to(device, dtype)
        states = torch.randn(8, TOKENS // 8, SIZES[size][0], device=device, dtype=dtype)
        works.append(_step(holder, states.requires_grad_(), torch.randn_like(states)))
    found: list[list[tuple[float, float]]] = [[], []]
    for number in range(ROUNDS + 2):
        for work, times in zip(works, found, strict=True):
            taken = _seconds(work)
            if number >= 2:
                times.append(taken)
    (wall, cpu), (dense_wall, dense_cpu) = (
        [statistics.median(t) for t in zip(*times, strict=True)] for times in found
    )
    print(
        f"\n{kind} {size} {device}: routed {wall * 1e3:.1f} ms wall, {cpu * 1e3:.1f} ms CPU; "
        f"dense {dense_wall * 1e3:.1f}, {dense_cpu * 1e3:.1f}; "
        f"ratio {wall / dense_wall:.3f} wall, {cpu / dense_cpu:.3f} CPU"
    )
    ratio = wall / dense_wall if device == "cuda" else cpu / dense_cpu
    assert ratio <= LIMIT
