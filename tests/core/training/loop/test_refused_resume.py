"""A training goes on only as what it was begun as; else it says what has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import EmbergeError, PerDataset
from emberge.training import FitOptions, FitResult, TrainingState
from emberge.training.loop.checkpoints import refuse_other_training
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE

from tests.support import tiny
from tests.support.fitting import run_fit
from tests.support.training_data import InMemory, retrieval, similarity

OPTIONS = FitOptions(learning_rate=1e-3, token_budget=80, save_steps=2, keep_last=1)
CONTRAST = InfoNCE(temperature=0.1)


def _sampler(size: int = 8, **more: Any) -> tuple[BatchShuffle]:
    return (BatchShuffle(batch_size=PerDataset(default=size), **more),)


def _losses(*find: Any, sts: Any = None) -> PerDataset[Any]:
    return PerDataset(default=find or (CONTRAST,), by_task={"sts": (sts or CoSENT(),)})


def _rewritten(like: InMemory) -> InMemory:
    """As many rows, one of them another."""
    changed = dataclasses.replace(like.rows[3], anchor="find another thing")
    rows = [*like.rows[:3], changed, *like.rows[4:]]
    return dataclasses.replace(like, rows=rows, fingerprint="rewritten")


class _Killed(BaseException):
    pass


def _kill(done: int, *_: object) -> None:
    if done == 5:
        raise _Killed


def _fit(
    model: Path, root: Path, progress: Callable[..., None] = lambda *_: None, **changes: Any
) -> FitResult:
    given: dict[str, Any] = {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": _sampler(),
        "losses": _losses(),
        "options": OPTIONS,
        "folder": root / "out",
        "work": root / "work",
        "seed": 0,
        "progress": progress,
    }
    return run_fit(**{**given, **changes})


@pytest.fixture(scope="module")
def begun(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was killed after its second state; whoever is refused leaves it as it is."""
    root = tmp_path_factory.mktemp("begun")
    with pytest.raises(_Killed):
        _fit(bert, root, _kill)
    return root


BATCHES = r"the batches \(sampler, seed or number of rows\)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"losses": _losses(InfoNCE(temperature=0.2))},
            r"the options of components \(loss of find\)",
        ),
        ({"losses": _losses(sts=CoSENT(scale=7.0))}, r"components \(loss of alike\)"),
        ({"backbone": TextEncoder(pooling="cls")}, r"the options of components \(backbone\)"),
        ({"sampler": _sampler(8, tail="keep")}, BATCHES),
        ({"seed": 1}, BATCHES),
        (
            {"options": dataclasses.replace(OPTIONS, learning_rate=5e-4)},
            r"the options \(learning_rate\)",
        ),
        (
            {
                "options": dataclasses.replace(
                    OPTIONS, max_length=PerDataset(default=9), max_grad_norm=2.0
                )
            },
            r"the options \(max_grad_norm, max_length\)",
        ),
        ({"datasets": [_rewritten(retrieval()), similarity()]}, r"the data \(find\)"),
        ({"datasets": [retrieval()]}, r"the data \(alike\)"),
        ({"datasets": [retrieval(), similarity(), retrieval(name="more")]}, r"the data \(more\)"),
    ],
)
def test_what_has_changed_is_named(
    begun: Path, bert: Path, change: dict[str, Any], reason: str
) -> None:
    states = sorted(p.name for p in (begun / "work" / "states").iterdir())
    with pytest.raises(EmbergeError, match=rf"states: .*{reason} have changed since; delete"):
        _fit(bert, begun, **change)
    assert sorted(p.name for p in (begun / "work" / "states").iterdir()) == states
    assert not (begun / "out").exists()


def test_a_fact_that_only_a_plugins_trainee_states_is_compared(tmp_path: Path) -> None:
    state = TrainingState(1, {}, {"identity": {"data": {}, "vocabulary": "a"}})
    refuse_other_training(state, {"data": {}, "vocabulary": "a"}, tmp_path)
    with pytest.raises(EmbergeError, match="vocabulary have changed since"):
        refuse_other_training(state, {"data": {}, "vocabulary": "b"}, tmp_path)


def test_other_weights_to_start_from_are_refused(begun: Path, bert: Path, tmp_path: Path) -> None:
    sibling = tiny.checkpoint(tmp_path / "m", seed=9, like=bert)
    with pytest.raises(EmbergeError, match="the weights it starts from have changed since"):
        _fit(sibling, begun)


def test_what_changes_no_result_is_no_reason(bert: Path, tmp_path: Path) -> None:
    _fit(bert, tmp_path / "whole")
    with pytest.raises(_Killed):
        _fit(bert, tmp_path / "cut", _kill)
    free = {"save_steps": 3, "keep_last": 0, "logging_steps": 1, "token_budget": 1000}
    options = dataclasses.replace(OPTIONS, kept_tokens=0, **free)  # type: ignore[arg-type]
    _fit(bert, tmp_path / "cut", options=options)
    found = [(tmp_path / n / "out" / "model.safetensors").read_bytes() for n in ("whole", "cut")]
    assert found[0] == found[1]
