"""`emberge run` on several ranks, as people start it: by --ranks, torchrun or accelerate."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from emberge.cli.main import main

from tests.support import exact
from tests.support.launched import LIMIT, gone, until
from tests.support.result_folders import read_results
from tests.support.tolerance import exactly
from tests.support.training_data import retrieval

STEPS = 40
EXACT_PLUGIN = Path(exact.__file__)
RECIPE = """\
seed: 1
steps:
  tuned:
    train:
      model: {model}
      backbone: exact_encoder
      data: [{{path: {data}, task: retrieval}}]
      sampler: [{{batch_shuffle: {{batch_size: 7}}}}]
      loss: {{infonce: {{temperature: 0.1}}}}
      max_steps: {steps}
      learning_rate: 1.0e-4
      dropout: false
      save_steps: 3
      logging_steps: 1
  merged:
    merge: {{models: [$tuned, {model}], strategy: linear}}
"""
EMBERGE = [sys.executable, "-m", "emberge"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]


@dataclass(frozen=True)
class Run:
    """A command that has ended, and the folder it worked in."""

    out: Path
    code: int
    said: str


@pytest.fixture(scope="module")
def recipe(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training and a merge with what it started from."""
    root = tmp_path_factory.mktemp("recipe")
    rows = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval(30).rows]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "recipe.yaml").write_text(
        RECIPE.format(model=bert, data=root / "pairs.jsonl", steps=STEPS)
    )
    return root / "recipe.yaml"


def words(recipe: Path, out: Path, *more: str, verb: str = "run") -> list[str]:
    given = ["--plugin", str(EXACT_PLUGIN), "--devices", "cpu"]
    return [verb, str(recipe), "--out", str(out), *given, *more]


def started(line: list[str], out: Path) -> subprocess.Popen[str]:
    """Start a command beside this one; what it says goes to a file next to `out`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with Path(f"{out}.said").open("w") as said:
        return subprocess.Popen(line, stdout=said, stderr=said, text=True, env=environment)


def ended(process: subprocess.Popen[str], out: Path) -> Run:
    try:
        code = process.wait(LIMIT)
    finally:
        process.kill()
    return Run(out, code, Path(f"{out}.said").read_text())


def run(line: list[str], out: Path) -> Run:
    return ended(started(line, out), out)


def losses(out: Path) -> list[float]:
    rows = (json.loads(line) for line in (out / "tuned/metrics.jsonl").read_text().splitlines())
    return [row["value"] for row in rows if row["name"] == "loss"]


def reached(out: Path) -> int:
    """The last step that was logged."""
    log = out / "metrics.jsonl"
    found = re.findall(r'"name": "loss".*"at": (\d+)}', log.read_text() if log.is_file() else "")
    return int(found[-1]) if found else 0


def ranks_of(launcher: int) -> list[int]:
    """The processes of ranks that a command has started, the first rank before the second."""
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        told = {int(p): Path(f"/proc/{p}/environ").read_bytes().split(b"\0") for p in children}
    except OSError:
        return []
    return [p for rank in (b"RANK=0", b"RANK=1") for p, names in told.items() if rank in names]


def has_both_ranks(launcher: int) -> bool:
    return len(ranks_of(launcher)) == 2


def running(true: Callable[[int], object], process: subprocess.Popen[str]) -> None:
    """Wait until something is true of a process that is running."""

    def is_true() -> bool:
        assert process.poll() is None, "it ended too early"
        return bool(true(process.pid))

    until(is_true)


@pytest.fixture(scope="module")
def alone(recipe: Path) -> Run:
    out = recipe.parent / "alone"
    return run([*EMBERGE, *words(recipe, out)], out)


@pytest.fixture(scope="module")
def both(recipe: Path) -> Run:
    out = recipe.parent / "both"
    return run([*EMBERGE, *words(recipe, out, "--ranks", "2")], out)


@pytest.mark.slow
def test_two_ranks_give_the_losses_of_one_and_finish(alone: Run, both: Run) -> None:
    assert (alone.code, both.code) == (0, 0), both.said
    assert len(losses(both.out)) == STEPS
    assert losses(both.out) == exactly(losses(alone.out))
    assert losses(both.out)[-1] < losses(both.out)[0]
    assert read_results(both.out).keys() == read_results(alone.out).keys()
    artifacts = (json.loads((run.out / "tuned/artifact.json").read_text()) for run in (alone, both))
    assert [artifact["details"].get("ranks") for artifact in artifacts] == [None, 2]
    assert both.said.count("tuned: done in") == both.said.count("merged: done in") == 1
    assert not any((both.out / ".work").glob("*"))


@pytest.fixture(scope="module")
def disturbed(recipe: Path) -> Iterator[Mapping[str, Run | list[int]]]:
    """One run of two ranks: each rank is killed, then what started them twice, then nobody."""
    out = recipe.parent / "disturbed"
    line = [*EMBERGE, *words(recipe, out, "--ranks", "2")]
    found: dict[str, Run | list[int]] = {}
    for rank, goal in ((1, 5), (0, 10)):
        process = started(line, out)
        running(lambda _, goal=goal: reached(out) >= goal, process)  # type: ignore[misc]
        os.kill(ranks_of(process.pid)[rank], signal.SIGKILL)
        found[f"rank {rank} killed"] = ended(process, out)
    process = started(line, out)
    running(lambda _: reached(out) >= 15, process)
    process.send_signal(signal.SIGINT)
    found["stopped"] = ended(process, out)
    left = []
    # The launcher: in training, and before the ranks have found each other.
    for name, goal in (("training", 20), ("starting", 0)):
        process = started(line, out)
        running(has_both_ranks, process)
        running(lambda _, goal=goal: reached(out) >= goal, process)  # type: ignore[misc]
        left = ranks_of(process.pid)
        process.kill()
        found[f"launcher killed {name}"] = ended(process, out)
        found[f"left {name}"] = left
        until(lambda left=left: all(map(gone, left)), 30)  # type: ignore[misc]
    found["undisturbed"] = run(line, out)
    yield found
    for each in left:
        if not gone(each):
            os.kill(each, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
def test_a_killed_rank_ends_the_run_with_an_error_that_names_it(
    disturbed: Mapping[str, Run], rank: int
) -> None:
    run = disturbed[f"rank {rank} killed"]
    assert run.code == 1
    (line,) = [line for line in run.said.splitlines() if line.startswith("error: ")]
    why = f"rank {rank} has ended (killed by signal 9); the same command goes on from here"
    assert why in line
    assert "Traceback" not in run.said
    assert "torch" not in run.said


@pytest.mark.slow
@pytest.mark.parametrize("when", ["training", "starting"])
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
def test_a_killed_launcher_leaves_no_rank(disturbed: Mapping[str, list[int]], when: str) -> None:
    assert len(disturbed[f"left {when}"]) == 2
    assert all(map(gone, disturbed[f"left {when}"]))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
def test_the_same_command_ends_in_the_same_bytes(disturbed: Mapping[str, Run], both: Run) -> None:
    last = disturbed["undisturbed"]
    assert last.code == 0, last.said
    assert read_results(last.out) == read_results(both.out)
    assert losses(last.out) == losses(both.out)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [TORCHRUN, [*ACCELERATE, "--multi_gpu"]])
def test_a_launcher_makes_the_same_bytes(launcher: list[str], recipe: Path, both: Run) -> None:
    out = recipe.parent / ("torchrun" if launcher is TORCHRUN else "accelerate")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = ["--master_port" if launcher is TORCHRUN else "--main_process_port"]
        port.append(str(found.getsockname()[1]))
    done = run([*launcher, *port, "-m", "emberge", *words(recipe, out)], out)
    assert done.code == 0, done.said
    assert read_results(out) == read_results(both.out)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if started by nobody; what is set here is gone afterwards."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("told", "ranks", "message"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            ("--ranks", "3"),
            "--ranks 3, and the launcher started 2; leave --ranks out",
        ),
        ({"RANK": "2", "WORLD_SIZE": "2"}, (), "RANK=2 and WORLD_SIZE=2 are no rank and number"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, (), "RANK=one and WORLD_SIZE=2 are no rank"),
    ],
)
def test_impossible_ranks_are_refused_before_any_work(
    recipe: Path,
    tmp_path: Path,
    launched: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: Mapping[str, str],
    ranks: tuple[str, ...],
    message: str,
) -> None:
    for name, value in told.items():
        launched.setenv(name, value)
    assert main(words(recipe, tmp_path / "out", *ranks)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
