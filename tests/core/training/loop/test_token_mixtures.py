"""Mixtures by tokens in trainings: sets count by tokens, on any ranks, after any kill, in every arm."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from emberge import Batch, Machine, PerDataset, Pool, Sampler
from emberge.contracts import BatchPart
from emberge.training import FitJob, FitOptions, FitResult, open_session
from emberge_train import MLM, Mixture

from tests.support import tiny
from tests.support.exact import ExactEncoder
from tests.support.token_training import OPTIONS, arguments_of, fit_tokens
from tests.support.tolerance import exactly
from tests.support.training_data import InMemory, texts

LIMITS = {**OPTIONS, "max_length": PerDataset(default=16)}
MIXTURE = Mixture(shares={"read": 0.7}, batch_tokens=160)


def _sets() -> list[InMemory]:
    other = texts(20)
    return [texts(), dataclasses.replace(other, info=dataclasses.replace(other.info, name="code"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixture")
    return tiny.transformer(root / "bert", "AutoModelForMaskedLM", "bert")


def _arguments(**given: Any) -> dict[str, Any]:
    options = FitOptions(**LIMITS)
    return {"datasets": _sets(), "sampler": (MIXTURE,), "options": options, **given}


def _fit(model: Path, root: Path, **given: Any) -> FitResult:
    return fit_tokens(model, root, **_arguments(**given))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstRows(Sampler):
    """One batch of the first rows of the sets named: three of one, eight of the other."""

    names: tuple[str, ...]

    def batches(self, pool: Pool, seed: int) -> list[Batch]:
        rows = {"read": range(3), "code": range(8)}
        return [Batch(tuple(BatchPart(name, rows[name]) for name in self.names))]


def test_a_step_of_several_sets_is_their_mean_by_tokens(model: Path, tmp_path: Path) -> None:
    one, other, both = (
        _fit(model, tmp_path / "+".join(names), sampler=(FirstRows(names=names),)).step_losses[0]
        for names in (("read",), ("code",), ("read", "code"))
    )
    with _session(model, tmp_path / "counted") as session:
        counted = {name: table.info.tokens for name, table in session.windows.items()}
    read, code = (int(counted[name][:n].sum()) for name, n in (("read", 3), ("code", 8)))  # type: ignore[index]
    assert read * 8 != code * 3  # or a mean by rows would do
    assert both[1] == exactly((one[1] * read + other[1] * code) / (read + code))


def _session(model: Path, root: Path, **given: Any) -> Any:
    job = FitJob(**arguments_of(model, **_arguments(**given)))
    return open_session(
        job, work=root, store=None, machine=Machine(("cpu",)), progress=lambda *_: None
    )


def _rows(model: Path, root: Path, **given: Any) -> list[list[tuple[str, list[int]]]]:
    """Return the rows of every step, and check that they are windows of the same texts."""
    with _session(model, root, **given) as session:
        return [
            [(part.dataset, part.rows.tolist()) for part in batch.parts] for batch in session.plan
        ]


@pytest.fixture(scope="module")
def plain_rows(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[list[tuple[str, list[int]]]]:
    return _rows(model, tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize(
    "arm",
    [
        {"losses": PerDataset(default=(MLM(share=0.1),))},
        {"losses": PerDataset(default=(MLM(share=0.4), MLM(share=0.2, weight=0.5)))},
        {"backbone": ExactEncoder(pooling="cls")},
        {"options": FitOptions(**{**LIMITS, "learning_rate": 1e-4, "schedule": "linear"})},
    ],
)
def test_arms_that_differ_in_loss_model_or_rate_see_the_same_rows_in_the_same_order(
    arm: dict[str, Any], model: Path, plain_rows: Any, tmp_path: Path
) -> None:
    assert _rows(model, tmp_path / "arm", **arm) == plain_rows
