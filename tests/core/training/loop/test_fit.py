from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import DataError, Embeddings, EmbergeError, Example, Loss, PerDataset, PluginError
from emberge.training import FitOptions, FitResult
from emberge.training.batch_loss import Objective
from emberge.training.loop.session_opening import _warn_of_ranks
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE, MarginMSE, Matryoshka
from safetensors.torch import load_file, save_file

from tests.support.fitting import run_fit
from tests.support.training_data import dataset, retrieval, similarity

BATCHES = BatchShuffle(batch_size=PerDataset(default=8))
LOSSES: PerDataset[tuple[Loss, ...]] = PerDataset(
    default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}
)


def _fit(
    model: Path, root: Path, metrics: list[tuple[str, float, int]] | None = None, **given: Any
) -> FitResult:
    options = given.pop("options", FitOptions(learning_rate=1e-3, token_budget=80))
    found = metrics if metrics is not None else []
    arguments: dict[str, Any] = {
        "backbone": TextEncoder(),
        "checkpoint": model,
        "datasets": [retrieval(), similarity()],
        "sampler": (BATCHES,),
        "losses": LOSSES,
        "options": options,
        "folder": root / "out",
        "work": root / "work",
        "seed": 0,
        "metric": lambda name, value, at: found.append((name, value, at)),
    }
    return run_fit(**{**arguments, **given})


def _weights(root: Path) -> bytes:
    return (root / "out" / "model.safetensors").read_bytes()


@dataclass(frozen=True)
class Done:
    """A finished training: its folder, what it returned and what it logged."""

    root: Path
    result: FitResult
    metrics: list[tuple[str, float, int]]

    def logged(self, name: str) -> list[float]:
        return [value for n, value, _ in self.metrics if n == name]


def _done(model: Path, root: Path, **given: Any) -> Done:
    metrics: list[tuple[str, float, int]] = []
    return Done(root, _fit(model, root, metrics, **given), metrics)


@pytest.fixture(scope="module")
def plain(shaky: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A training of two datasets."""
    return _done(shaky, tmp_path_factory.mktemp("plain"))


LEARNING = FitOptions(learning_rate=2e-3, epochs=12, token_budget=80)


@pytest.fixture(scope="module")
def learned(shaky: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A training that is long enough to learn."""
    root = tmp_path_factory.mktemp("learned")
    return _done(shaky, root, datasets=[retrieval()], options=LEARNING)


def test_training_learns_and_tells(learned: Done) -> None:
    losses, result = learned.logged("loss"), learned.result
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert result.steps == 60 == len(losses)
    assert result.examples == 480
    assert result.rows_by_dataset == {"find": 40}
    assert result.last_loss == pytest.approx(sum(losses[-6:]) / 6)
    assert {name for name, _, _ in learned.metrics} == {
        *("loss", "learning_rate", "grad_norm", "tokens_per_second"),
        *("padding_share", "kept_share", "memory_gib", "examples"),
    }
    assert set(learned.logged("kept_share")) == {1.0}
    assert max(learned.logged("padding_share")) < 0.35


def test_each_dataset_has_its_losses_and_each_step_is_told_with_its_own(plain: Done) -> None:
    result = plain.result
    assert {name for name, _, _ in plain.metrics} >= {"loss/find", "loss/alike"}
    names = [name for name, _ in result.step_losses]
    assert (names.count("find"), names.count("alike")) == (5, 3)
    assert len(result.step_losses) == result.steps == 8


def test_the_same_arguments_give_the_same_bytes(plain: Done, shaky: Path, tmp_path: Path) -> None:
    again = FitOptions(learning_rate=1e-3, token_budget=80, kept_tokens=0)
    _fit(shaky, tmp_path / "again", options=again)
    assert _weights(tmp_path / "again") == _weights(plain.root)
    _fit(shaky, tmp_path / "other", seed=1)
    assert _weights(tmp_path / "other") != _weights(plain.root)


def test_without_a_folder_nothing_is_kept_but_what_is_said(
    plain: Done, shaky: Path, tmp_path: Path
) -> None:
    told = _fit(shaky, tmp_path, folder=None)
    assert told.step_losses == plain.result.step_losses
    assert not (tmp_path / "out").exists()
    assert told.checkpoints == ()


def test_the_model_keeps_its_tensors_and_files(plain: Done, shaky: Path) -> None:
    out = plain.root / "out"
    before, after = (load_file(f / "model.safetensors") for f in (shaky, out))
    assert before.keys() == after.keys()
    assert torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("encoder.layer.0" in name for name in moved)
    files = [{p.relative_to(f) for p in f.rglob("*") if p.is_file()} for f in (shaky, out)]
    assert files[0] == files[1]


class _Killed(BaseException):
    pass


def test_an_interrupted_training_goes_on_to_the_same_bytes(shaky: Path, tmp_path: Path) -> None:
    options = FitOptions(learning_rate=1e-3, epochs=3, token_budget=80, save_steps=4, keep_last=2)
    whole = _fit(shaky, tmp_path / "whole", options=options)

    def stop(done: int, *_: object) -> None:
        if done == stops[0]:
            if stops.pop(0) in (2, 21):
                signal.raise_signal(signal.SIGINT)
            else:
                raise _Killed

    stops = [2, 3, 5, 18, 21, 99]
    (tmp_path / "full" / "work").mkdir(parents=True)
    (tmp_path / "full" / "work" / "states").touch()  # in the way of a state
    with pytest.raises(KeyboardInterrupt) as caught:
        _fit(shaky, tmp_path / "full", options=options, progress=stop)
    assert caught.value.__notes__ == ["the last steps could not be saved (File exists)"]
    while len(stops) > 1:
        with pytest.raises((_Killed, KeyboardInterrupt)):
            _fit(shaky, tmp_path / "cut", options=options, progress=stop)
    assert (tmp_path / "cut" / "work" / "states" / "step-21").is_dir()
    cut = _fit(shaky, tmp_path / "cut", options=options, progress=stop)
    assert _weights(tmp_path / "cut") == _weights(tmp_path / "whole")
    assert (cut.step_losses, cut.examples) == (whole.step_losses, whole.examples)
    assert [p.name for p in whole.checkpoints] == ["step-20", "step-24"]
    for path in whole.checkpoints:
        first, second = (
            tmp_path / n / "out" / path / "model.safetensors" for n in ("cut", "whole")
        )
        assert first.read_bytes() == second.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Guided(Loss):
    """A loss that wants what nobody offers."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"guide"})


BARE = dataset("bare", "retrieval", [Example("a")] * 8)


@pytest.mark.parametrize(
    ("data", "losses", "message"),
    [
        ([retrieval()], (CoSENT(),), "'find': row 1 has no score.*CoSENT"),
        (
            [similarity()],
            (InfoNCE(),),
            r"'alike': row 1 has no negative of its own.*\(24 of 24 rows\).*in_batch",
        ),
        ([similarity()], (), "'alike' has no loss for its task sts"),
        ([BARE], (InfoNCE(),), "'bare': row 1 has no positive"),
        ([retrieval()], (Guided(),), "Guided needs 'guide'"),
    ],
)
def test_data_and_losses_that_do_not_fit_stop_before_training(
    shaky: Path, tmp_path: Path, data: Any, losses: tuple[Loss, ...], message: str
) -> None:
    by_data: Any = PerDataset(default=losses) if losses else PerDataset(by_task={"retrieval": ()})
    with pytest.raises((DataError, PluginError), match=message):
        _fit(shaky, tmp_path, datasets=data, losses=by_data)
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True, kw_only=True)
class Wild(Loss):
    """A loss that is no number for the batch that holds the first row."""

    def __call__(self, embeddings: Embeddings) -> torch.Tensor:
        bad = (embeddings.text_id[:, 0] == 0).any()
        return embeddings.anchor.square().sum() * torch.where(bad, torch.inf, 1.0)


@dataclass(frozen=True, kw_only=True)
class ByRow(Loss):
    """A loss with a number for each row."""

    def __call__(self, embeddings: Embeddings) -> torch.Tensor:
        return embeddings.anchor.sum(1)


@dataclass(frozen=True, kw_only=True)
class Forgetful(Loss):
    """A loss without a `return`."""

    def __call__(self, embeddings: Embeddings) -> torch.Tensor:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Forgetful(), "Forgetful of dataset 'find' must return a tensor with a gradient, not None"),
        (Wild(), r"step \d+ is not finite \(dataset 'find', rows [\d, …]+\)"),
        (ByRow(), r"ByRow of dataset 'find' has the shape \[\d+\]; it must be one number"),
    ],
)
def test_a_loss_that_is_no_number_names_what_it_is_of(
    shaky: Path, tmp_path: Path, loss: Loss, message: str
) -> None:
    with pytest.raises(EmbergeError, match=message):
        _fit(
            shaky,
            tmp_path,
            datasets=[retrieval()],
            losses=PerDataset(default=(loss,)),
            options=FitOptions(save_steps=1),
        )
    assert not (tmp_path / "out").exists()
    for state in (tmp_path / "work" / "states").glob("step-*"):
        tensors = load_file(state / "tensors.safetensors")
        assert all(torch.isfinite(t).all() for t in tensors.values())


def test_a_model_with_nan_is_named_at_its_first_step(shaky: Path, tmp_path: Path) -> None:
    weights = shutil.copytree(shaky, tmp_path / "nan") / "model.safetensors"
    tensors = load_file(weights)
    name = next(name for name in tensors if "layer.1.output.dense.weight" in name)
    save_file({**tensors, name: tensors[name] * torch.nan}, weights, {"format": "pt"})
    with pytest.raises(EmbergeError, match=rf"nan: '{name}' has NaN or infinite values"):
        _fit(tmp_path / "nan", tmp_path)


def test_what_the_sampler_has_to_say_is_handed_on(shaky: Path, tmp_path: Path) -> None:
    said: list[str] = []
    _fit(shaky, tmp_path, datasets=[retrieval(), similarity(3)], warn=said.append)
    assert said == [
        "smaller than one batch and left out: 'alike' (3 rows, batches of 8); "
        "lower their batch_size or set tail: wrap or keep"
    ]


@pytest.mark.parametrize(("warmup", "doubted"), [(4, False), (5, True)])
def test_a_warm_up_as_long_as_the_training_is_warned_about(
    shaky: Path, tmp_path: Path, warmup: int, doubted: bool
) -> None:
    said: list[str] = []
    options = FitOptions(learning_rate=1e-3, warmup_steps=warmup, max_steps=5)
    _fit(shaky, tmp_path, options=options, warn=said.append)
    assert ["5 steps and warmup_steps is 5" in one for one in said] == [True] * doubted


def test_what_makes_the_model_depend_on_ranks_is_warned_about() -> None:
    infos, said = [retrieval().info, similarity().info], list[str]()
    for loss, draws in (
        (CoSENT(cross_rank=True), False),
        (CoSENT(cross_rank=True), True),
        (CoSENT(), False),
        (MarginMSE(), False),  # its rows do not depend on each other
        (Matryoshka(loss=(MarginMSE(),), dims=(2,)), False),
    ):
        losses = PerDataset(default=LOSSES.default, by_task={"sts": (loss,)})
        objective, names = Objective(losses, infos), [info.name for info in infos]
        _warn_of_ranks(objective, names, 2, draws, said.append)
    assert ["dropout: false" in text for text in said] == [True, False]
    assert ["CoSENT compares" in text for text in said] == [False, True]
