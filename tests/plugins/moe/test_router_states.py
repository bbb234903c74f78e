"""Routers from hidden states: by hand, on numbers that leave no doubt."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emberge_moe.upcycle import probe
from emberge_moe.upcycle.probe import mean_states, write_routers
from safetensors.torch import load_file


def states_of(*chunks: list[list[float]]) -> Any:
    """Chunks of one layer's states, as the probe yields them."""
    return lambda *_: iter([(0, torch.tensor(chunk)) for chunk in chunks])


def test_a_mean_is_over_the_tokens_of_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = states_of([[1.0, 0.0], [3.0, 0.0], [5.0, 4.0]], [[3.0, 8.0]])
    monkeypatch.setattr(probe, "block_inputs", chunks)
    dense: Any = SimpleNamespace(width=2, entered=str)
    found = mean_states(SimpleNamespace(), dense, [0], [])  # type: ignore[arg-type]
    assert found[0].tolist() == [3.0, 3.0]


def test_a_router_is_centred_over_its_experts(tmp_path: Path) -> None:
    means = [[4.0, 0, 0, 10], [0, 2, 0, 10], [-4, -2, 0, 10]]
    given = [{0: torch.tensor(one, dtype=torch.float64)} for one in means]
    write_routers(tmp_path / "routers", given, "float32")
    router = load_file(tmp_path / "routers" / "model.safetensors")["0"]
    # What all have in common, 10 in the last number, is gone; directions from the common mean are left.
    lines = [[1.0, 0, 0, 0], [0, 1, 0, 0], [-2 / math.sqrt(5), -1 / math.sqrt(5), 0, 0]]
    torch.testing.assert_close(router, torch.tensor(lines) * 0.04, rtol=0, atol=1e-7)
