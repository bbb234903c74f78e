from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import PerDataset
from emberge.training import FitOptions
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE

from tests.support import ranked_fit
from tests.support.exact import ExactEncoder
from tests.support.ranked_fit import Death, Training
from tests.support.tolerance import exactly
from tests.support.training_data import retrieval, similarity


def _arguments(model: Path, epochs: int, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        **{"epochs": epochs, "learning_rate": 1e-3, "token_budget": 80, "kept_tokens": 80},
        **{"save_steps": 3, "keep_last": 2, "logging_steps": 1},
        **more,
    }
    return {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=7), tail="keep"),),
        "losses": PerDataset(default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}),
        "options": FitOptions(**options),
        "seed": 0,
    }


def _contents(root: Path) -> dict[str, bytes]:
    """Everything in a result, the kept models too."""
    out = root / "out"
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def _killed(root: Path, arguments: dict[str, Any], deaths: Sequence[tuple[Death, ...]]) -> int:
    """Train on two ranks, killed again and again, to the end; how many of the deaths were met."""
    met = 0
    for number, each in enumerate(deaths):
        path = root / f"try{number}.pkl"
        training = Training(root, arguments, deaths=each)
        ended = ranked_fit.codes(ranked_fit.start([training], path, 2))
        assert None not in ended, f"{each}: a rank hangs"
        assert -9 in ended, f"{each}: {ended} {ranked_fit.said(path, 0)}"
        assert 0 not in ended, f"{each}: {ended}, a rank took no notice"
        met += 1
    ranked_fit.run([Training(root, arguments)], root / "last.pkl", 2)
    return met


@pytest.mark.slow
def test_killed_ranks_end_in_the_same_bytes(shaky: Path, tmp_path: Path) -> None:
    arguments = _arguments(shaky, epochs=2)
    ranked_fit.run([Training(tmp_path / "whole", arguments)], tmp_path / "whole.pkl", 2)
    deaths = [(Death(1, "step", 5),), (Death(0, "flush", 7),), (Death(0, "step", 4),)]
    assert _killed(tmp_path / "cut", arguments, deaths) == 3
    assert _contents(tmp_path / "cut") == _contents(tmp_path / "whole")


def _exact_arguments(bert: Path, **options: Any) -> dict[str, Any]:
    return _arguments(bert, epochs=2, dropout=False, **options) | {
        "backbone": ExactEncoder(),
        "losses": PerDataset(
            default=(InfoNCE(temperature=0.1),),
            by_task={"sts": (CoSENT(cross_rank=True),)},
        ),
    }


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_with_the_same_batches(bert: Path, tmp_path: Path) -> None:
    arguments = _exact_arguments(bert)
    whole = Training(tmp_path / "whole", arguments, exact=True)
    (one,) = ranked_fit.run([whole], tmp_path / "whole.pkl", 1)
    cut = tmp_path / "cut"
    for number, (ranks, shard, deaths) in enumerate(
        [(1, False, (Death(0, "step", 5),)), (2, True, (Death(1, "step", 10),)), (3, False, ())]
    ):
        path = cut / f"try{number}.pkl"
        ended = ranked_fit.codes(
            ranked_fit.start([Training(cut, arguments, shard, deaths, exact=True)], path, ranks)
        )
        assert (-9 in ended) == bool(deaths), ranked_fit.said(path, 0)
    losses = ranked_fit.results(cut / "try2.pkl")[0]["result"].step_losses
    assert [loss for _, loss in losses] == exactly([loss for _, loss in one["result"].step_losses])
