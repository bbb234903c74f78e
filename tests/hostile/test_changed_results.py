"""Results that were changed after their step: none is skipped or published."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emberge import run_recipe
from emberge.cli.main import main
from emberge.errors import EmbergeError
from emberge.recipes import run_step
from emberge.results.verification import UnsoundResultError
from emberge.training import TrainingState
from emberge.training.loop.checkpoints import MANIFEST_FILE, TENSORS_FILE

from tests.support.json_files import changing
from tests.support.steps import RAN, Write, recipe, toy


def run(place: Path, **options: object) -> None:
    run_recipe(recipe(a=Write(**options)), place, toy())  # type: ignore[arg-type]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished run of one step, a model."""
    place = tmp_path / "out"
    run(place, checkpoints=(1,))
    return place


def rerun(place: Path) -> None:
    RAN.clear()
    run(place, checkpoints=(1,))


# ── finished results ────────────────────────────────────────────────────────────────────────────


def link(result: Path) -> None:
    (result / "config.json").rename(result.parent / "elsewhere.json")
    (result / "config.json").symlink_to(result.parent / "elsewhere.json")


def forge_record(result: Path) -> None:
    with changing(result / "artifact.json") as record:
        record["files"] = {"../../thesis.tex": record["files"]["config.json"]}


def write(name: str) -> Callable[[Path], object]:
    return lambda result: (result / name).write_text("{}")


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (write("config.json"), "config.json was changed"),
        (write("checkpoints/step-1/config.json"), "checkpoints/step-1/config.json was changed"),
        (lambda result: (result / "config.json").unlink(), "config.json is missing"),
        (link, "config.json is missing"),
        (write("model.safetensors"), "model.safetensors was added"),
        (forge_record, "artifact.json"),
    ],
)
def test_a_result_that_is_not_as_its_step_left_it_is_not_skipped(
    out: Path, harm: Callable[[Path], object], named: str
) -> None:
    result = (out / "a").resolve()
    harm(result)
    with pytest.raises(UnsoundResultError, match=named) as caught:
        rerun(out)
    assert str(result) in str(caught.value)
    assert RAN == []
    shutil.rmtree(result)
    rerun(out)
    assert RAN == ["a"]


def test_a_change_that_keeps_size_and_time_is_found(out: Path) -> None:
    rerun(out)
    file = (out / "a").resolve() / "config.json"
    before = file.stat()
    file.write_bytes(bytes(len(file.read_bytes())))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UnsoundResultError):
        rerun(out)


def test_what_completes_a_result_later_may_change(out: Path) -> None:
    result = (out / "a").resolve()
    (result / "README.md").write_text("a card with newer scores")
    (result / "notes.txt").write_text("mine")
    rerun(out)
    assert RAN == []


# ── states of a training ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("names", [(), (MANIFEST_FILE,), (TENSORS_FILE, "none")])
def test_a_training_state_is_taken_only_with_its_recorded_hash(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    TrainingState(1, {"w": torch.zeros(2)}, {}).write(tmp_path)
    with changing(tmp_path / "step-1" / MANIFEST_FILE) as content:
        content["files"] = dict.fromkeys(names, content["files"][TENSORS_FILE])
    assert TrainingState.read_newest(tmp_path) is None


# ── merges of one command ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def words(berts: list[Path], tmp_path: Path) -> list[str]:
    """A merge of two models into `merged`."""
    models = [str(path) for path in berts[:2]]
    return ["merge", *models, "--strategy", "linear", "--out", str(tmp_path / "merged"), "--quiet"]


@pytest.fixture
def finished(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hidden folder of that merge, killed after the work and before the model got its name."""
    with monkeypatch.context() as patched:
        patched.setattr("emberge_merge.one_merge.publish", _interrupted)
        assert main(words) == 130
    return tmp_path / ".merged.merging"


def test_a_merge_publishes_no_weights_that_were_planted_in_its_hidden_folder(
    words: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = finished.glob("merged-*/model.safetensors")
    weights.write_bytes(bytes(weights.stat().st_size))
    assert main(words) == 2
    assert "model.safetensors was changed" in capsys.readouterr().err
    assert list(finished.parent.iterdir()) == []
    assert main(words) == 0


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_merge_that_was_interrupted_after_its_work_ends_well(
    words: list[str], finished: Path
) -> None:
    assert main(words) == 0
    assert [path.name for path in finished.parent.iterdir()] == ["merged"]


def test_a_merge_whose_disk_failed_goes_on_from_its_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        run_step(*arguments)  # type: ignore[arg-type]
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise EmbergeError("the disk is full") from error

    with monkeypatch.context() as patched:
        patched.setattr("emberge.recipes.run.recipe_run.run_step", fails)
        assert main(words) == 1
    assert [path.name for path in tmp_path.iterdir()] == [".merged.merging"]
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_a_changed_model_is_not_published(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words) == 0
    weights = tmp_path / "merged" / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["publish", str(tmp_path / "merged"), "me/soup", "--yes"]) == 2
    assert "was changed" in capsys.readouterr().err
