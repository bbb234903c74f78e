"""Steps side by side: the bytes of a run alone, whoever dies on the way, and nobody left behind."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emberge import (
    DataError,
    EmbergeError,
    Launcher,
    Machine,
    hookimpl,
    load_plugins,
    load_recipe,
    parse_recipe,
    run_recipe,
)
from emberge.cli.main import main
from emberge.contracts import Event, MetricLogged, StepFinished, StepStarted, StepWarned
from emberge.devices import limit_torch_threads
from emberge.options import read_component
from emberge.recipes import read_status
from emberge_local import Local, PoolLauncher, ProcessEnd, StepRequest

from tests.support.fixture_types import Capture, Patch
from tests.support.launched import LIMIT, PLUGIN, STEPS, gone, losses, until, workers, write_recipe
from tests.support.launched_plugin import POISON
from tests.support.result_folders import folders, read_results
from tests.support.steps import Listener, Write, recipe, toy

CPU = Machine(workers=2)


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("trained"), bert)


@pytest.fixture(scope="module")
def alone(trained: Path) -> Path:
    """What comes of a run without launcher."""
    out = trained.parent / "alone"
    plugins = load_plugins([PLUGIN])
    with limit_torch_threads(1):
        run_recipe(load_recipe(trained, plugins), out, plugins, machine=CPU, quiet=True)
    return out


def launched(
    text: str | Path, out: Path, launcher: Launcher | None, *listeners: object, **more: Any
) -> Mapping[str, Path]:
    plugins = load_plugins([PLUGIN])
    for listener in listeners:
        plugins.register(listener, "listener")
    made = load_recipe(text, plugins) if isinstance(text, Path) else parse_recipe(text, plugins)
    return folders(
        run_recipe(made, out, plugins, machine=CPU, quiet=True, executor=launcher, **more)
    )


@pytest.mark.slow
def test_one_worker_gives_the_bytes_of_a_run_without_a_launcher(
    trained: Path, alone: Path, tmp_path: Path
) -> None:
    launched(trained, tmp_path, Local(workers=1))
    assert read_results(tmp_path) == read_results(alone)
    assert len(losses(tmp_path, "members.draw=1")) == STEPS
    assert losses(tmp_path, "members.draw=1") == losses(alone, "members.draw=1")
    assert list((tmp_path / ".work").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in alone.iterdir())


@pytest.mark.slow
def test_two_workers_give_the_same_bytes_though_one_is_killed(
    trained: Path, alone: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    poison = tmp_path / "poison"
    poison.touch()
    monkeypatch.setenv(POISON, str(poison))
    listener = Listener()
    launched(trained, tmp_path / "out", Local(workers=2), listener)
    assert not poison.exists()
    assert read_results(tmp_path / "out") == read_results(alone)
    (warned,) = [message for event, message in listener.events if event == "warned"]
    assert warned == "its process was killed by signal 9; it goes on from its last state (1 of 2)"
    # It went on from a state and did not start over: what was logged twice is what was lost.
    everything = (tmp_path / "out" / "metrics.jsonl").read_text().count('"name": "loss"')
    assert 2 * STEPS < everything < 2 * STEPS + 10


def test_a_launcher_announces_the_events_of_a_run_without_one(tmp_path: Path) -> None:
    text = "steps: {a: {wait: {ticks: 3, every: 0.01}}, b: {wait: {ticks: 3, every: 0, of: [$a]}}}"
    told = {}
    for name, launcher in (("alone", None), ("local", Local(workers=2))):
        listener = Everything()
        launched(text, tmp_path / name, launcher, listener)
        told[name] = listener.heard
    assert told["local"] == told["alone"]
    assert told["alone"][0] == ("started", "a", "launched_plugin:wait")
    assert ("metric", "b", "tick", 2, 2) in told["alone"]


class Everything:
    """Hears what does not depend on the clock."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    @hookimpl
    def hear_event(self, event: Event) -> None:
        match event:
            case StepStarted():
                self.heard.append(("started", event.step, event.kind))
            case StepWarned():
                self.heard.append(("warned", event.step, event.message))
            case MetricLogged():
                self.heard.append(("metric", event.step, event.name, event.value, event.at))
            case StepFinished(artifact=made):
                self.heard.append(("finished", event.folder.name, made.kind, made.warnings))


FAILING = """\
steps:
  a: {fail: {how: data}}
  b: {wait: {name: b, ticks: 2, every: 0.01, of: [$a]}}
  c: {wait: {name: c, ticks: 2, every: 0.01}}
  d: {wait: {name: d, ticks: 2, every: 0.01, of: [$c]}}
"""


def test_a_step_that_fails_is_not_tried_again_and_others_finish(tmp_path: Path) -> None:
    listener = Listener()
    with pytest.raises(DataError, match=r"^rows.jsonl:3: no anchor") as caught:
        launched(FAILING, tmp_path, Local(workers=2), listener)
    assert caught.value.__notes__ == ["in step 'a'"]
    assert listener.end is not None
    assert listener.end.blocked == ("b",)
    assert set(listener.end.results) == {"c", "d"}
    (tries,) = tmp_path.glob(".work/a-*/tries")
    assert tries.read_text() == "x"
    assert [s.state for s in read_status(tmp_path).steps] == ["failed", "blocked", "done", "done"]


def test_an_unforeseen_error_of_a_process_is_shown_like_one_of_this_process(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "r.yaml").write_text("steps: {a: {fail: {how: bug}}}")
    words = ["run", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*words, "--plugin", str(PLUGIN), "--launcher", "local"]) == 1
    said = capsys.readouterr().err
    assert said == "error: ValueError in step 'a': a bug (--debug shows where)\n"
    log = (tmp_path / "out" / "run.log").read_text()
    assert 'raise ValueError("a bug")' in log, "the log has the traceback of the other process"


def test_a_step_that_is_killed_each_time_fails_and_says_how_often(tmp_path: Path) -> None:
    with pytest.raises(EmbergeError, match="killed by signal 9 3 times; the same command goes on"):
        launched("steps: {a: {fail: {how: die}}}", tmp_path, Local())
    (tries,) = tmp_path.glob(".work/a-*/tries")
    assert tries.read_text() == "xxx"


@dataclass(frozen=True, kw_only=True)
class Idle(PoolLauncher):
    """Say at once that a step has ended."""

    code: int = 0

    @contextlib.contextmanager
    def open(self, machine: Machine) -> Iterator[Idle]:
        yield self

    has_room = True

    def launch(self, request: StepRequest) -> Idle:
        return self

    def poll(self) -> ProcessEnd:
        return ProcessEnd(self.code)

    def stop(self) -> None:
        """There is nothing to stop."""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, "its process ended with exit code 0 and no result"),
        (143, "its process was asked to end 3 times; the same command goes on from there"),
    ],
)
def test_a_process_that_ends_without_a_result_is_a_failure(
    tmp_path: Path, code: int, says: str
) -> None:
    with pytest.raises(EmbergeError, match=says):
        launched("steps: {a: {wait: {}}}", tmp_path, Idle(code=code))


WAITING = "steps: {a: {wait: {name: a}}, b: {wait: {name: b}}, c: {wait: {name: c}}}"


def parent(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A run of two workers, both of which are at work."""
    (folder / "r.yaml").write_text(WAITING)
    out = folder / "out"
    line = ["run", str(folder / "r.yaml"), "--out", str(out), "--plugin", str(PLUGIN)]
    process = subprocess.Popen(
        [sys.executable, "-m", "emberge", *line, "--launcher", "{local: {workers: 2}}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(list(workers(out))) == 2 and len(list(out.glob(".work/*/done"))) == 2)
    except BaseException:
        process.kill()
        raise
    return process, out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGKILL, signal.SIGINT)),
        signal.SIGTERM,
    ],
)
def test_no_worker_outlives_the_run(tmp_path: Path, number: int) -> None:
    process, out = parent(tmp_path)
    running = dict(workers(out))
    until(lambda: [s.state for s in read_status(out).steps] == ["running", "running", "waiting"])
    until(
        lambda: all(
            re.search(r"of 100 ticks\) [\d.]+ s left", s) for s in read_status(out).lines[:2]
        )
    )
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT)
    until(lambda: all(map(gone, running.values())))
    assert [s.state for s in read_status(out).steps] == ["stopped", "stopped", "waiting"]
    if number != signal.SIGKILL:
        assert (process.returncode, said) == (
            143 if number == signal.SIGTERM else 130,
            "stopped; the same command goes on from here\n",
        )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("locl", "launcher: there is no launcher 'locl'; did you mean 'local'?"),
        ("{local: {workers: 0}}", "'workers' of launcher 'local' needs a whole number of at least"),
    ],
)
def test_an_impossible_launcher_is_named(
    text: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "r.yaml").write_text(WAITING)
    words = ["run", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--plugin", str(PLUGIN), "--launcher", text]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_launcher_is_made_of_its_first_option_and_needs_a_recipes_text(tmp_path: Path) -> None:
    given = read_component("{local: 3}", Launcher, load_plugins(block=()), "--launcher")
    assert given == Local(workers=3)
    with pytest.raises(EmbergeError, match="write it as YAML, or run it without a launcher"):
        run_recipe(recipe(a=Write()), tmp_path, toy(), executor=Local())


def test_a_machine_is_divided_among_workers_as_memory_allows() -> None:
    gpus = Machine(devices=("cuda:0", "cuda:1"), workers=8, memory=80)
    assert Local().divide_machine(gpus) == [
        Machine(devices=("cuda:0",), workers=4, memory=40),
        Machine(devices=("cuda:1",), workers=4, memory=40),
    ]
    shared = [share.devices[0] for share in Local(workers=3).divide_machine(gpus)]
    assert shared == ["cuda:0", "cuda:1", "cuda:0"]
    assert len(Local().divide_machine(Machine(workers=8))) == 4
    assert len(Local(threads=8).divide_machine(Machine(workers=8))) == 1
    assert len(Local().divide_machine(Machine(workers=1))) == 1
    machine = Machine(workers=8, memory=10_000)
    assert [p.memory for p in Local(memory="3kB").divide_machine(machine)] == [3000] * 3
    assert len(Local(workers=2, memory="3kB").divide_machine(machine)) == 2
    assert len(Local(memory="30kB").divide_machine(machine)) == 1
    assert len(Local(workers=2, memory="1kB").divide_machine(Machine(workers=2))) == 2
