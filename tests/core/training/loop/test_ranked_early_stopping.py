from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from emberge import PerDataset
from emberge.training import EarlyStopping, FitOptions
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE

from tests.support import ranked_fit
from tests.support.fitting import score
from tests.support.ranked_fit import Death, Training
from tests.support.training_data import retrieval, similarity

TOLD = [0.1, 0.5, 0.4, 0.5, 0.9, 0.9, 0.9, 0.9]


def _arguments(model: Path, root: Path) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    return {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "losses": PerDataset(default=(InfoNCE(),), by_task={"sts": (CoSENT(),)}),
        "options": FitOptions(epochs=2, learning_rate=1e-3, token_budget=80, save_steps=3),
        "seed": 0,
        "early_stopping": EarlyStopping(
            2, partial(score, TOLD, root / "asked"), "told", patience=2
        ),
    }


def _asked(root: Path) -> list[str]:
    return (root / "asked").read_text().split()


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_the_first_rank_scores_and_all_stop(bert: Path, tmp_path: Path, shard: bool) -> None:
    training = Training(tmp_path, _arguments(bert, tmp_path), shard)
    (found,) = ranked_fit.run([training], tmp_path / "case.pkl", 2)
    result = found["result"]
    assert _asked(tmp_path) == ["0:2", "0:4", "0:6", "0:8"]
    assert (result.steps, result.result_step, len(found["losses"])) == (8, 4, 8)
    assert result.scores == ((2, 0.1), (4, 0.5), (6, 0.4), (8, 0.5))


@pytest.mark.slow
def test_killed_ranks_stop_at_the_same_step_with_the_same_bytes(bert: Path, tmp_path: Path) -> None:
    found = {}
    for name, deaths in (
        ("whole", ()),
        # A step after one that was scored, and in the midst of saving a state.
        ("cut", (Death(1, "step", 5), Death(0, "flush", 5))),
    ):
        root = tmp_path / name
        arguments = _arguments(bert, root)
        for number, death in enumerate(deaths):
            training = Training(root, arguments, deaths=(death,))
            started = ranked_fit.start([training], root / f"try{number}.pkl", 2)
            assert -9 in ranked_fit.codes(started)
        (found[name],) = ranked_fit.run([Training(root, arguments)], root / "last.pkl", 2)
    same = [dataclasses.replace(one["result"], seconds=0, cpu_seconds=0) for one in found.values()]
    assert same[0] == same[1]
    weights = [(tmp_path / name / "out/model.safetensors").read_bytes() for name in found]
    assert weights[0] == weights[1]
    assert len(_asked(tmp_path / "cut")) >= len(_asked(tmp_path / "whole")) == 4
