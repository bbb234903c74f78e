"""A run whose power is cut publishes whole results or none, and the next one ends with the same.

What a power cut may leave is described in `tests/support/power_cuts.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from emberge import (
    Artifact,
    EmbergeError,
    Machine,
    ModelRef,
    Plugins,
    Step,
    Workspace,
    hookimpl,
    run_recipe,
)
from emberge.cli.main import main
from emberge.contracts import (
    Event,
    StepFinished,
)
from emberge.recipes import Recipe, RecipeStep, status, verify_result
from emberge.results import read_artifact
from emberge_local import Launch, PoolLauncher

from tests.support import tiny
from tests.support.disk_recorder import DiskRecorder, syncs_skipped
from tests.support.power_cuts import Cut, DiskLog, contents


@dataclass(frozen=True, kw_only=True)
class Write(Step):
    """Write a model folder of words and of the models it is given, log numbers and warn."""

    produces = "model"
    word: str
    of: tuple[ModelRef, ...] = ()

    def run(self, workspace: Workspace) -> Artifact:
        for tick in range(12):
            workspace.progress(tick, 12, "tick")
            workspace.metric("loss", 1 / (tick + 1), tick)
        workspace.warn(f"{self.word} is odd")
        given = [workspace.model(reference).folder / "config.json" for reference in self.of]
        text = self.word + "".join(path.read_text() for path in given)
        (workspace.folder / "config.json").write_text(json.dumps({"text": text, "long": "x" * 900}))
        (workspace.folder / "2_Dense").mkdir(exist_ok=True)
        (workspace.folder / "2_Dense" / "config.json").write_text("{}")
        return Artifact("model", size=12)


class Registered:
    """The plugin of the step; it announces what the run does."""

    def __init__(self, announce: Callable[[str], None] = lambda _: None) -> None:
        self.announce = announce

    @hookimpl
    def register_steps(self) -> Mapping[str, type[Step]]:
        return {"write": Write}

    @hookimpl
    def hear_event(self, event: Event) -> None:
        if isinstance(event, StepFinished):
            self.announce(event.step)


def recipe(last: str = "B") -> Recipe:
    """A model `a`, and `b` which is made of it and of the word `last`."""
    steps = {"a": Write(word="A"), "b": Write(word=last, of=(ModelRef("$a"),))}
    made = tuple(
        RecipeStep(name, name, "toy:write", step, f"toy.yaml:{name}", {})
        for name, step in steps.items()
    )
    return Recipe(0, made, Path("toy.yaml"), f"a: A\nb: {last}\n")


def run(disk: Path, last: str = "B", announce: Callable[[str], None] = lambda _: None) -> None:
    plugins = Plugins()
    plugins.register(Registered(announce), "toy")
    run_recipe(recipe(last), disk / "out", plugins, machine=Machine(workers=1), quiet=True)


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with syncs_skipped():
        yield


def result(folder: Path) -> dict[str, Any]:
    """A result's files, without the times in them."""
    found: dict[str, Any] = dict(contents(folder))
    record = json.loads(found.pop("artifact.json"))
    record["files"].pop("metrics.jsonl")
    lines = found.pop("metrics.jsonl").splitlines()
    rows = [{**json.loads(line), "time": None} for line in lines]
    return {**found, "record": {**record, "seconds": None}, "rows": rows}


def results(disk: Path) -> dict[str, Any]:
    return {step: result(disk / "out" / step) for step in ("a", "b")}


def published_faults(cut: Cut, place: Path) -> Iterator[str]:
    """Look at a disk before anything is run on it again; yield what is half, and what is lost."""
    cut.restore(place)
    out = place / "out"
    for record in out.glob("*/artifact.json") if out.is_dir() else ():
        try:
            verify_result(record.parent)
        except Exception as error:
            yield f"{cut}: {record.parent.name}: {error!r}"
    try:
        status(out)
    except EmbergeError:
        pass  # it says that there is no run, or that the file is damaged and what to do
    except Exception as error:
        yield f"{cut}: status: {error!r}"
    for step in {"a", "b"} & {*cut.announced}:
        if read_artifact(out / step) is None:
            yield f"{cut}: {step} was announced and is lost"


def run_faults(cut: Cut, place: Path, expected: Mapping[str, Any], last: str) -> Iterator[str]:
    """Run again on such a disk; yield what is wrong then."""
    try:
        run(place, last)
    except Exception as error:
        yield f"{cut}: {error!r}"
        return
    if results(place) != expected:
        yield f"{cut}: other results"
    if left := [path.name for path in (place / "out" / ".work").iterdir()]:
        yield f"{cut}: leaves {left}"


def faults_of(log: DiskLog, place: Path, last: str, more: dict[str, Any]) -> str:
    """Return what is wrong with any disk of the log, before and after the next run."""
    expected = results(place.with_name("whole"))

    def judge(cut: Cut) -> Iterator[str]:
        yield from published_faults(cut, place)
        yield from run_faults(cut, place, expected, last)

    return log.faults(judge, **more)


WAYS = pytest.mark.parametrize(
    "more",
    [
        {"draws": 2, "most": 80},
        pytest.param({"draws": 15, "everywhere": True, "most": 600}, marks=pytest.mark.slow),
    ],
    ids=["", "many"],
)


@WAYS
def test_a_run_whose_power_is_cut_publishes_whole_results(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Each is as its artifact.json says or has none, is there once it was announced, and is never half."""
    run(tmp_path / "whole")
    (tmp_path / "disk").mkdir()
    with DiskRecorder(tmp_path / "disk") as recorder:
        run(tmp_path / "disk", announce=recorder.announce)
        recorder.announce("run")
    assert results(tmp_path / "disk") == results(tmp_path / "whole")
    faults = faults_of(recorder.log, tmp_path / "place", "B", more)
    assert not faults, faults


@pytest.mark.slow
@WAYS
def test_a_result_that_takes_the_place_of_an_older_one_leaves_that_or_is_whole(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """The link leads to the old result or to the new one, and so does the recipe that is kept."""
    for name in ("whole", "disk"):
        run(tmp_path / name)
    before = results(tmp_path / "whole")
    run(tmp_path / "whole", "C")
    with DiskRecorder(tmp_path / "disk") as recorder:
        run(tmp_path / "disk", "C", recorder.announce)
    after = results(tmp_path / "whole")
    for cut in recorder.log.cuts(**more):
        cut.restore(tmp_path / "place")
        assert results(tmp_path / "place") in (before, after), cut
        kept = (tmp_path / "place" / "out" / "recipe.yaml").read_text()
        assert kept in ("a: A\nb: B\n", "a: A\nb: C\n"), cut
    faults = faults_of(recorder.log, tmp_path / "place", "C", more)
    assert not faults, faults


@dataclass(frozen=True, kw_only=True)
class Overloaded(PoolLauncher):
    """A launcher that takes no step; it announces which it was given."""

    announce: Callable[[str], None]

    @contextmanager
    def open(self, machine: Machine) -> Iterator[Overloaded]:
        yield self

    has_room = True

    def launch(self, launch: Launch) -> NoReturn:
        self.announce(launch.work.name)
        raise EmbergeError("all machines are taken; try later")


def test_the_folder_of_a_launched_step_is_safe_before_its_process_works_in_it(
    tmp_path: Path,
) -> None:
    """All that the process makes safe in it would be lost with its name."""
    plugins = Plugins()
    plugins.register(Registered(), "toy")
    with DiskRecorder(tmp_path) as recorder, pytest.raises(EmbergeError, match="taken"):
        run_recipe(
            recipe(),
            tmp_path / "out",
            plugins,
            machine=Machine(workers=1),
            quiet=True,
            launcher=Overloaded(announce=recorder.announce),
        )
    launched = [cut for cut in recorder.log.cuts() if cut.announced]
    assert launched
    for cut in launched:
        assert f"out/.work/{cut.announced[0]}" in cut.tree, cut


# ── emberge merge ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for i in (0, 1):
        tiny.checkpoint(root / f"m{i}", seed=i, num_hidden_layers=1, hidden_size=16)
    return root


def merge_by_command(models: Path, disk: Path) -> int:
    folders = [str(path) for path in sorted(models.iterdir())]
    return main(["merge", *folders, "--strategy", "linear", "--out", str(disk / "out"), "--quiet"])


def command_faults(cut: Cut, place: Path, models: Path, expected: object) -> Iterator[str]:
    """Give the same command on a disk whose power was cut; yield what is wrong then."""
    cut.restore(place)
    out = place / "out"
    published = (out / "config.json").exists()
    if cut.announced and not published:
        yield f"{cut}: was announced and is lost"
    code = merge_by_command(models, place)
    # It refuses to do again what is done, and takes away what it needs no more.
    if code != (2 if published else 0):
        yield f"{cut}: exit code {code}"
        return
    if merged(out) != expected:
        yield f"{cut}: other bytes"
    if (left := [path.name for path in place.iterdir()]) != ["out"]:
        yield f"{cut}: leaves {left}"


def merged(out: Path) -> dict[str, Any]:
    """The files of the merged model; its card is made anew by any later run, and may be missing."""
    found: dict[str, Any] = dict(contents(out))
    found.pop("README.md", None)
    return {**found, "artifact.json": {**json.loads(found["artifact.json"]), "seconds": None}}


@pytest.mark.slow
def test_a_merge_command_whose_power_is_cut_leaves_a_whole_model_or_none(
    models: Path, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "disk").mkdir()
    assert merge_by_command(models, tmp_path / "whole") == 0
    with DiskRecorder(tmp_path / "disk") as recorder:
        assert merge_by_command(models, tmp_path / "disk") == 0
        recorder.announce("merged")
    expected = merged(tmp_path / "whole" / "out")
    judge = partial(command_faults, place=tmp_path / "place", models=models, expected=expected)
    faults = recorder.log.faults(judge, draws=1, most=200)
    assert not faults, faults
