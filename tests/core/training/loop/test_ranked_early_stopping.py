from __future__ import annotations

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
from tests.support.ranked_fit import Training
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
