from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Loss, PerDataset
from emberge.training import EarlyStopping, FitOptions, FitResult
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE
from safetensors.torch import load_file

from tests.support import ranked_fit
from tests.support.fitting import run_fit, score
from tests.support.ranked_fit import Training
from tests.support.training_data import retrieval, similarity

LOSSES: PerDataset[tuple[Loss, ...]] = PerDataset(
    default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}
)
OPTIONS = FitOptions(max_steps=12, learning_rate=1e-3, token_budget=80, save_steps=3)


def _arguments(model: Path, stopping: EarlyStopping | None) -> dict[str, Any]:
    return {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": (BatchShuffle(batch_size=PerDataset(default=8)),),
        "losses": LOSSES,
        "options": OPTIONS,
        "seed": 0,
        "early_stopping": stopping,
    }


def _fit(model: Path, root: Path, stopping: EarlyStopping | None, **given: Any) -> FitResult:
    folders = {"folder": root / "out", "work": root / "work"}
    return run_fit(**{**_arguments(model, stopping), **folders, **given})


def _told(scores: Sequence[float], every: int = 2) -> Callable[[Path, int], float]:
    """A score by step, of a model that is really there."""

    def score(folder: Path, step: int) -> float:
        assert load_file(folder / "model.safetensors")
        return scores[step // every - 1]

    return score


def _untimed(result: FitResult) -> FitResult:
    return dataclasses.replace(result, seconds=0, cpu_seconds=0)


def _weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def plain(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FitResult]:
    """A training that nobody scores, which keeps a model every fourth step."""
    root = tmp_path_factory.mktemp("plain")
    kept = dataclasses.replace(OPTIONS, save_steps=4, keep_last=3)
    return root / "out", _fit(bert, root, None, options=kept)


def test_training_stops_when_it_gets_no_better(
    plain: tuple[Path, FitResult], bert: Path, tmp_path: Path
) -> None:
    score = _told([0.1, 0.5, 0.5, 0.4, 0.9, 0.9])
    logged: list[tuple[str, float, int]] = []
    watch = EarlyStopping(2, score, "told", patience=2)
    result = _fit(bert, tmp_path / "a", watch, metric=lambda *row: logged.append(row))
    assert result.scores == ((2, 0.1), (4, 0.5), (6, 0.5), (8, 0.4))
    assert (result.steps, result.result_step) == (8, 4)
    assert [row for row in logged if row[0] == "score"] == [
        ("score", value, step) for step, value in result.scores
    ]
    assert [row[2] for row in logged if row[0] == "loss"] == list(range(1, 9))
    # The best model is the one that a training of four of these steps would have left.
    out, unscored = plain
    assert unscored.checkpoints[0] == Path("checkpoints/step-4")
    assert _weights(tmp_path / "a/out") == _weights(out / "checkpoints/step-4")
    assert (unscored.scores, unscored.result_step) == ((), 12)


def test_scoring_changes_nothing_of_the_training(
    plain: tuple[Path, FitResult], bert: Path, tmp_path: Path
) -> None:
    def score(folder: Path, step: int) -> float:
        torch.manual_seed(step)
        torch.rand(3)
        torch.set_num_threads(torch.get_num_threads() + 1)
        return float(step)

    threads = torch.get_num_threads()
    result = _fit(bert, tmp_path / "a", EarlyStopping(1, score, "disturbing"))
    assert torch.get_num_threads() == threads
    assert result.result_step == 12
    assert _weights(tmp_path / "a/out") == _weights(plain[0])


SCORES = [0.1, 0.5, 0.3, 0.6, 0.2, 0.1]


@pytest.fixture(scope="module")
def scored(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FitResult]:
    """A training that nobody kills."""
    root = tmp_path_factory.mktemp("scored")
    return root / "out", _fit(bert, root, EarlyStopping(2, _told(SCORES), "told", patience=2))


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("when", ["scoring", "progress"])
def test_a_killed_training_stops_at_the_same_step_with_the_same_bytes(
    scored: tuple[Path, FitResult], bert: Path, tmp_path: Path, when: str, number: int
) -> None:
    out, whole = scored
    assert (whole.steps, whole.result_step) == (12, 8)

    def killing(folder: Path, step: int) -> float:
        if when == "scoring" and step == 2 * number:
            raise KeyboardInterrupt
        return _told(SCORES)(folder, step)

    def progress(done: float, total: float, unit: str = "", note: str = "") -> None:
        if when == "progress" and (done, unit) == (2 * number + 1, "steps"):
            raise KeyboardInterrupt

    root = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        _fit(bert, root, EarlyStopping(2, killing, "told", patience=2), progress=progress)
    again = _fit(bert, root, EarlyStopping(2, _told(SCORES), "told", patience=2))
    assert _untimed(again) == _untimed(whole)
    assert _weights(root / "out") == _weights(out)


def test_a_training_that_was_stopped_stays_so(bert: Path, tmp_path: Path) -> None:
    asked: list[int] = []

    def score(folder: Path, step: int) -> float:
        asked.append(step)
        return -float(step)

    first = _fit(bert, tmp_path, EarlyStopping(2, score, "falling", patience=1))
    again = _fit(bert, tmp_path, EarlyStopping(2, score, "falling", patience=1))
    assert asked == [2, 4]
    assert _untimed(again) == _untimed(first)
    assert again.result_step == 2


def test_the_best_models_of_the_two_newest_states_are_kept(bert: Path, tmp_path: Path) -> None:
    kept: list[str] = []

    def score(folder: Path, step: int) -> float:
        others = (path.name for path in folder.parent.iterdir() if path != folder)
        kept.append(" ".join(sorted(others)))
        return _told(SCORES)(folder, step)

    # Without states at other steps, each scoring sees what the two states before it need.
    options = dataclasses.replace(OPTIONS, save_steps=100)
    _fit(bert, tmp_path, EarlyStopping(2, score, "told"), options=options)
    assert kept == ["", "step-2", "step-2 step-4", "step-4", "step-4 step-8", "step-8"]


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_the_first_rank_scores_and_all_stop(bert: Path, tmp_path: Path, shard: bool) -> None:
    told = functools.partial(score, [0.1, 0.5, 0.4, 0.5], tmp_path / "asked")
    arguments = _arguments(bert, EarlyStopping(2, told, "told", patience=2))
    training = Training(tmp_path, arguments, shard)
    (found,) = ranked_fit.run([training], tmp_path / "case.pkl", 2)
    result = found["result"]
    assert (tmp_path / "asked").read_text().split() == ["0:2", "0:4", "0:6", "0:8"]
    assert (result.steps, result.result_step, len(found["losses"])) == (8, 4, 8)
    assert result.scores == ((2, 0.1), (4, 0.5), (6, 0.4), (8, 0.5))
