from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import DataError, Embeddings, EmbergeError, Example, Loss, PerDataset, PluginError
from emberge.training import FitOptions, FitResult
from emberge_boom import Bagging
from emberge_encoder import TextEncoder
from emberge_train import BatchShuffle, CoSENT, InfoNCE
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.fitting import run_fit
from tests.support.killed import killed_when
from tests.support.training_data import InMemory, dataset, retrieval, similarity

BATCHES = BatchShuffle(batch_size=PerDataset(default=8))
LOSSES: PerDataset[tuple[Loss, ...]] = PerDataset(
    default=(InfoNCE(temperature=0.1),), by_task={"sts": (CoSENT(),)}
)


@pytest.fixture(scope="module")
def shaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout, so that random numbers matter."""
    folder = tmp_path_factory.mktemp("shaky") / "m"
    tiny.checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.1}))
    return folder


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


def test_training_learns_and_tells(shaky: Path, tmp_path: Path) -> None:
    metrics: list[tuple[str, float, int]] = []
    options = FitOptions(learning_rate=2e-3, epochs=12, token_budget=80)
    result = _fit(shaky, tmp_path, metrics, datasets=[retrieval()], options=options)
    losses = [value for name, value, _ in metrics if name == "loss"]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert result.steps == 60 == len(losses)
    assert result.examples == 480
    assert result.pool == {"find": 40}
    assert result.losses["find"] == pytest.approx(sum(losses[-6:]) / 6)
    assert result.curve[-1] == (60, losses[-1])
    names = {name for name, _, _ in metrics}
    assert names == {
        "loss",
        "learning_rate",
        "grad_norm",
        "tokens_per_second",
        "padding_share",
        "kept_share",
        "memory_gib",
        "examples",
    }
    assert {v for n, v, _ in metrics if n == "kept_share"} == {1.0}
    assert max(v for n, v, _ in metrics if n == "padding_share") < 0.35


def test_each_dataset_has_its_losses(shaky: Path, tmp_path: Path) -> None:
    metrics: list[tuple[str, float, int]] = []
    result = _fit(shaky, tmp_path, metrics)
    assert set(result.losses) == {"find", "alike"}
    assert {name for name, _, _ in metrics} >= {"loss/find", "loss/alike"}


def test_the_same_arguments_give_the_same_bytes(shaky: Path, tmp_path: Path) -> None:
    for name, options in {
        "a": FitOptions(learning_rate=1e-3, token_budget=80),
        "b": FitOptions(learning_rate=1e-3, token_budget=80, kept_tokens=0),
    }.items():
        _fit(shaky, tmp_path / name, options=options)
    assert _weights(tmp_path / "a") == _weights(tmp_path / "b")
    _fit(shaky, tmp_path / "c", seed=1)
    assert _weights(tmp_path / "a") != _weights(tmp_path / "c")


def test_the_model_keeps_its_tensors_and_files(shaky: Path, tmp_path: Path) -> None:
    _fit(shaky, tmp_path)
    before, after = (load_file(f / "model.safetensors") for f in (shaky, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("encoder.layer.0" in name for name in moved)
    files = {p.relative_to(shaky) for p in shaky.rglob("*") if p.is_file()}
    assert files == {
        p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*") if p.is_file()
    }


class _Killed(BaseException):
    pass


def test_an_interrupted_training_goes_on_to_the_same_bytes(shaky: Path, tmp_path: Path) -> None:
    options = FitOptions(learning_rate=1e-3, epochs=3, token_budget=80, save_steps=4, keep_last=2)
    whole = _fit(shaky, tmp_path / "whole", options=options)

    def stop(done: int, *_: object) -> None:
        if done == stops[0]:
            stops.pop(0)
            raise _Killed

    stops = [3, 5, 11, 18, 99]
    while len(stops) > 1:
        with pytest.raises(_Killed):
            _fit(shaky, tmp_path / "cut", options=options, progress=stop)
    cut = _fit(shaky, tmp_path / "cut", options=options, progress=stop)
    assert _weights(tmp_path / "cut") == _weights(tmp_path / "whole")
    assert (cut.losses, cut.curve, cut.examples) == (whole.losses, whole.curve, whole.examples)
    assert [p.name for p in whole.checkpoints] == ["step-20", "step-24"]
    for path in whole.checkpoints:
        first, second = (
            tmp_path / n / "out" / path / "model.safetensors" for n in ("cut", "whole")
        )
        assert first.read_bytes() == second.read_bytes()


def _fit_and_tell(model: Path, root: Path) -> None:
    """Train with states, and keep the number of steps that are done in a file."""
    root.mkdir(exist_ok=True)
    _fit(
        model,
        root,
        options=FitOptions(
            epochs=4, learning_rate=1e-3, token_budget=80, kept_tokens=80, save_steps=2, keep_last=2
        ),
        store=root / "store",
        progress=lambda done, *_: (root / "told").write_text(str(done)),
    )


@pytest.mark.slow
def test_a_process_killed_at_random_moments_ends_in_the_same_bytes(
    shaky: Path, tmp_path: Path
) -> None:
    _fit_and_tell(shaky, tmp_path / "whole")
    chance = random.Random(0)

    def dies() -> bool:
        told = root / "told"
        if not told.is_file() or int(told.read_text() or 0) < steps:
            return False
        time.sleep(chance.uniform(0, 0.03))  # within a step, or while a state is being saved
        return True

    for trial in range(2):
        root = tmp_path / f"cut{trial}"
        for _ in range(3):
            steps = chance.randrange(1, 30)
            assert killed_when(dies, _fit_and_tell, shaky, root)
            (root / "told").unlink()
        _fit_and_tell(shaky, root)
        assert _weights(root) == _weights(tmp_path / "whole")


def test_a_kill_while_saving_costs_only_that_state(shaky: Path, tmp_path: Path) -> None:
    options = FitOptions(learning_rate=1e-3, epochs=2, token_budget=80, save_steps=3)
    _fit(shaky, tmp_path / "whole", options=options)

    def stop(done: int, *_: object) -> None:
        if done == 10:
            raise _Killed

    with pytest.raises(_Killed):
        _fit(shaky, tmp_path / "cut", options=options, progress=stop)
    states = tmp_path / "cut" / "work" / "states"
    assert sorted(p.name for p in states.iterdir()) == ["step-6", "step-9"]
    tensors = states / "step-9" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    (states / ".step-12.0123456789abcdef.part").mkdir()
    _fit(shaky, tmp_path / "cut", options=options)
    assert _weights(tmp_path / "cut") == _weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"options": FitOptions(learning_rate=5e-4, save_steps=2)},
            r"the options \(learning_rate\)",
        ),
        ({"seed": 5}, "the batches"),
        ({"datasets": [retrieval(48), similarity()]}, r"the data \(find\)"),
    ],
)
def test_a_state_of_another_training_is_refused_with_the_reason(
    shaky: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    options = FitOptions(learning_rate=1e-3, save_steps=2)

    def stop(done: int, *_: object) -> None:
        if done == 4:
            raise _Killed

    with pytest.raises(_Killed):
        _fit(shaky, tmp_path, options=options, progress=stop)
    with pytest.raises(EmbergeError, match=f"{reason}.* changed since; delete the folder"):
        _fit(shaky, tmp_path, **{"options": options, **change})


@pytest.mark.parametrize(
    ("data", "losses", "message"),
    [
        (retrieval(), PerDataset(default=(CoSENT(),)), "'find': row 1 has no score.*CoSENT"),
        (
            similarity(),
            PerDataset(default=(InfoNCE(),)),
            r"'alike': row 1 has no negative of its own.*\(24 of 24 rows\).*in_batch",
        ),
        (
            similarity(),
            PerDataset(by_task={"retrieval": (InfoNCE(),)}),
            "'alike' .sts. has no loss",
        ),
        (
            dataset("bare", "retrieval", [Example("a")] * 8),
            PerDataset(default=(InfoNCE(),)),
            "'bare': row 1 has no positive",
        ),
    ],
)
def test_data_that_a_loss_cannot_use_stop_before_training(
    shaky: Path, tmp_path: Path, data: InMemory, losses: PerDataset[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        _fit(shaky, tmp_path, datasets=[data], losses=losses)
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True, kw_only=True)
class Wild(Loss):
    """A loss that is no number for the batch that holds the first row."""

    def __call__(
        self, embeddings: Embeddings, parameters: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        bad = (embeddings.text_id[:, 0] == 0).any()
        return embeddings.anchor.square().sum() * torch.where(bad, torch.inf, 1.0)


def test_a_loss_that_is_no_number_names_step_dataset_and_rows(shaky: Path, tmp_path: Path) -> None:
    with pytest.raises(
        EmbergeError, match=r"step \d+ is not finite \(dataset 'find', rows [\d, …]+\)"
    ):
        _fit(
            shaky,
            tmp_path,
            datasets=[retrieval()],
            losses=PerDataset(default=(Wild(),)),
            options=FitOptions(save_steps=1),
        )
    assert not (tmp_path / "out").exists()
    for state in (tmp_path / "work" / "states").glob("step-*"):
        tensors = load_file(state / "tensors.safetensors")
        assert all(torch.isfinite(t).all() for t in tensors.values())


@dataclass(frozen=True, kw_only=True)
class Learned(Loss):
    """InfoNCE with a temperature that it learns."""

    def parameters(self) -> Mapping[str, torch.Tensor]:
        return {"scale": torch.tensor(2.0)}

    def __call__(
        self, embeddings: Embeddings, parameters: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        scores = embeddings.anchor @ embeddings.positive[:, 0].T * parameters["scale"].exp()
        return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def test_what_a_loss_learns_is_trained_and_resumed(shaky: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int, *_: object) -> None:
        if total and done == stops.pop(0):
            raise _Killed

    given: dict[str, Any] = {
        "datasets": [retrieval()],
        "losses": PerDataset(default=(Learned(),)),
        "options": FitOptions(learning_rate=1e-2, epochs=2, save_steps=3),
    }
    _fit(shaky, tmp_path / "whole", **given)
    stops = [0, 0, 0, 0, 5]
    with pytest.raises(_Killed):
        _fit(shaky, tmp_path / "cut", progress=stop, **given)
    state = load_file(tmp_path / "cut/work/states/step-3/tensors.safetensors")
    assert state["loss.0.scale"] != 2.0
    _fit(shaky, tmp_path / "cut", **given)
    assert _weights(tmp_path / "cut") == _weights(tmp_path / "whole")


@dataclass(frozen=True, kw_only=True)
class Guided(Loss):
    """A loss that wants what nobody offers."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"guide"})


def test_a_need_that_nobody_fills_is_named(shaky: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="'Guided' needs 'guide'"):
        _fit(shaky, tmp_path, losses=PerDataset(default=(Guided(),)))


@dataclass(frozen=True, kw_only=True)
class Misspelt(Loss):
    """A loss that embeds a column that there is not."""

    @property
    def embeds(self) -> frozenset[str]:
        return frozenset({"anchors"})


def test_columns_that_there_are_not_are_named(shaky: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"'Misspelt' embeds \['anchors'\]; name some of anchor"):
        _fit(shaky, tmp_path, losses=PerDataset(default=(Misspelt(),)))


def test_a_bag_counts_its_rows(shaky: Path, tmp_path: Path) -> None:
    result = _fit(shaky, tmp_path, sampler=(Bagging(ratio=0.5), BATCHES))
    assert result.pool == {"find": 20, "alike": 12}


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


def test_bfloat16_learns_too(shaky: Path, tmp_path: Path) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        options = FitOptions(
            learning_rate=2e-3, epochs=12, token_budget=80, precision=precision, logging_steps=1
        )
        result = _fit(shaky, tmp_path / precision, datasets=[retrieval()], options=options)
        losses = [loss for _, loss in result.curve]
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
        found[precision] = load_file(tmp_path / precision / "out/model.safetensors")
    kinds = {t.dtype for t in found["bfloat16"].values() if t.is_floating_point()}
    assert kinds == {torch.float32}
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(found["float32"][name], found["bfloat16"][name])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("warmup_ratio", 1.5),
        ("max_steps", 0),
        ("max_grad_norm", 0),
        ("keep_last", -1),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        FitOptions(**{option: value})  # type: ignore[arg-type]


def test_datasets_of_one_name_are_refused(shaky: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two datasets are named 'find'"):
        _fit(shaky, tmp_path, datasets=[retrieval(), retrieval(24)])
    shutil.rmtree(tmp_path, ignore_errors=True)
