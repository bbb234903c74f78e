"""The size of chunks follows the memory at hand, once, and then stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import PerDataset, devices
from emberge.encoding import choose_token_budget
from emberge.encoding import chunk_runner as memory
from emberge.training import FitOptions, FitResult
from emberge.training.loop.machine_settings import LEAST_TOKENS, halve_to_fit
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, InfoNCE

from tests.support.exact import ExactEncoder
from tests.support.fitting import run_fit
from tests.support.tolerance import exactly
from tests.support.training_data import retrieval

MIB = 2**20
PLENTY, SHORT = 2**40, 12 * MIB
PLAIN = TextEncoder()
FULL = choose_token_budget("cpu", training=True)


class _Killed(BaseException):
    pass


def _kill(done: int, *_: object) -> None:
    if done == 3:
        raise _Killed


def _fit(
    model: Path,
    root: Path,
    metrics: list[tuple[str, float, int]] | None = None,
    progress: Callable[..., None] = lambda *_: None,
    backbone: TextEncoder = PLAIN,
    **options: Any,
) -> FitResult:
    found = metrics if metrics is not None else []
    return run_fit(
        backbone=backbone,
        checkpoint=model,
        datasets=[retrieval(120)],
        sampler=(BatchShuffle(batch_size=PerDataset(default=60)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.1),)),
        options=FitOptions(learning_rate=1e-3, epochs=3, save_steps=1, **options),
        folder=root / "out",
        work=root / "work",
        seed=0,
        progress=progress,
        metric=lambda name, value, at: found.append((name, value, at)),
    )


def _weights(root: Path) -> bytes:
    return (root / "out" / "model.safetensors").read_bytes()


def _budget(root: Path) -> int:
    return int(json.loads((root / "work" / "machine.json").read_text())["token_budget"])


@pytest.mark.parametrize(
    ("each", "memory_free", "budget"),
    [
        (1000, 10_000_000, 2048),
        (1000, 4_096_000, 2048),  # just enough: half of it is for the chunk
        (1000, 4_095_999, 1024),
        (1000, 1_100_000, 512),
        (1000, 0, LEAST_TOKENS),
    ],
)
def test_a_budget_is_halved_until_a_chunk_takes_half_of_what_is_free(
    each: float, memory_free: int, budget: int
) -> None:
    assert halve_to_fit(2048, each, memory_free) == budget


def test_short_memory_makes_smaller_chunks_that_learn_the_same(
    shaky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for free in (PLENTY, SHORT):
        monkeypatch.setattr(memory, "read_available_memory", lambda free=free: free)
        metrics: list[tuple[str, float, int]] = []
        place = tmp_path / str(free)
        result = _fit(shaky, place, metrics, dropout=False, backbone=ExactEncoder())
        told = [value for name, value, _ in metrics if name == "token_budget"]
        assert told == [_budget(place)]
        found[free] = told[0], [loss for _, loss in result.step_losses]
    assert found[PLENTY][0] == FULL
    assert LEAST_TOKENS <= found[SHORT][0] < FULL
    assert found[SHORT][1] == exactly(found[PLENTY][1])


@pytest.mark.slow
def test_memory_that_comes_or_goes_changes_no_byte_of_a_resumed_training(
    shaky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first, then in ((SHORT, PLENTY), (PLENTY, SHORT)):
        monkeypatch.setattr(memory, "read_available_memory", lambda first=first: first)
        whole, cut = tmp_path / f"whole{first}", tmp_path / f"cut{first}"
        _fit(shaky, whole)
        with pytest.raises(_Killed):
            _fit(shaky, cut, progress=_kill)
        monkeypatch.setattr(memory, "read_available_memory", lambda then=then: then)
        _fit(shaky, cut)
        assert _budget(cut) == _budget(whole)
        assert _weights(cut) == _weights(whole)
    # With dropout the chunks would show, were they not kept.
    assert _weights(tmp_path / f"whole{SHORT}") != _weights(tmp_path / f"whole{PLENTY}")


@pytest.mark.parametrize(
    ("precision", "flags", "chosen"),
    [
        ("fast", "fpu avx512_bf16", "bfloat16"),
        ("fast", "fpu avx2", "float32"),
        ("auto", "fpu avx512_bf16", "float32"),
    ],
)
def test_fast_precision_is_what_the_processor_multiplies_and_stays_so(
    shaky: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: Any,
    flags: str,
    chosen: str,
) -> None:
    monkeypatch.setattr(devices, "_read_processor_flags", flags.split)
    _fit(shaky, tmp_path / "named", precision=chosen)
    with pytest.raises(_Killed):
        _fit(shaky, tmp_path / "kind", progress=_kill, precision=precision)
    monkeypatch.setattr(devices, "_read_processor_flags", list)
    _fit(shaky, tmp_path / "kind", precision=precision)
    assert _weights(tmp_path / "kind") == _weights(tmp_path / "named")
