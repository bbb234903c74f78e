"""The ray launcher on a cluster of two nodes, one of which is lost while steps run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from emberge import EmbergeError, Machine, load_plugins, load_recipe, parse_recipe, run_recipe
from emberge.devices import limit_torch_threads
from emberge_local import StepRequest
from emberge_ray import cluster
from emberge_ray.cluster import Ray

from tests.support.launched import LIMIT, PLUGIN, gone, losses, until, workers, write_recipe
from tests.support.launched_plugin import GATE
from tests.support.result_folders import folders, read_results
from tests.support.steps import Listener

pytest.importorskip("ray", reason="needs the extra ray: pip install 'emberge[ray]'")

CPU = Machine(workers=2)
OBJECTS = 80 * 2**20  # bytes of memory for a node's objects, the least that Ray takes


class Nodes:
    """A cluster of two nodes of one CPU each, as processes of this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        given = {"num_cpus": 1, "object_store_memory": OBJECTS}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**given, "include_dashboard": False}
        )
        self.second = self.cluster.add_node(**given)

    def lose_one(self) -> None:
        """The second node goes as by a power cut."""
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where trainings wait as long as the file is there; the nodes must know of it when they start."""
    return tmp_path_factory.mktemp("gate") / "gate"


@pytest.fixture(scope="module")
def nodes(gate: Path) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GATE, str(gate))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Nodes()
        yield made
        made.cluster.shutdown()


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("trained"), bert)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_step_outlives_the_run(nodes: Nodes, tmp_path: Path, number: int) -> None:
    (tmp_path / "r.yaml").write_text("steps: {a: {wait: {name: a}}, b: {wait: {name: b}}}")
    out = tmp_path / "out"
    line = ["run", str(tmp_path / "r.yaml"), "--out", str(out), "--plugin", str(PLUGIN)]
    launcher = f"{{ray: '{nodes.cluster.address}'}}"
    process = subprocess.Popen(
        [sys.executable, "-m", "emberge", *line, "--launcher", launcher],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(list(workers(out))) == 2)
        running = [pid for _, pid in workers(out)]
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    until(lambda: all(map(gone, running)))
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert said.splitlines()[-1] == "stopped; the same command goes on from here"


def disturb(nodes: Nodes, gate: Path, out: Path, done: list[str]) -> None:
    """While both members train, take away the node of one and kill the process of the other."""
    try:
        until(lambda: len(list(workers(out))) == 2 and len(list(gate.parent.glob("at-*"))) == 2)
        running = [pid for _, pid in workers(out)]
        nodes.lose_one()
        until(lambda: any(map(gone, running)))
        left = [pid for pid in running if not gone(pid)]
        done.append(f"of {len(running)} processes the lost node left {len(left)}")
        os.kill(left[0], signal.SIGKILL)
        done.append("and that was killed")
    finally:
        gate.unlink()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.slow
def test_a_lost_node_and_a_killed_worker_leave_the_bytes_of_a_run_alone(
    nodes: Nodes, gate: Path, trained: Path, tmp_path: Path
) -> None:
    """Which are those of `local` too: tests/plugins/local/test_launchers.py."""
    listener, plugins = Listener(), load_plugins([PLUGIN])
    made = load_recipe(trained, plugins)
    alone, out = tmp_path / "alone", tmp_path / "out"
    with limit_torch_threads(1):
        run_recipe(made, alone, plugins, machine=CPU, quiet=True)
    gate.touch()
    done: list[str] = []
    thread = threading.Thread(target=disturb, args=(nodes, gate, out, done), daemon=True)
    thread.start()
    plugins.register(listener, "listener")
    launcher = Ray(address=nodes.cluster.address)
    results = folders(run_recipe(made, out, plugins, machine=CPU, quiet=True, executor=launcher))
    thread.join()
    assert done == ["of 2 processes the lost node left 1", "and that was killed"]
    assert read_results(out) == read_results(alone)
    assert losses(out, "members.draw=2") == losses(alone, "members.draw=2")
    assert set(results) == {"members.draw=1", "members.draw=2", "merged"}
    warned = sorted(message for event, message in listener.events if event == "warned")
    assert len(warned) == 2
    assert "its process was killed by signal 9; it goes on from its last state (1 of 2)" in warned
    assert any(message.startswith("its process was lost (") for message in warned)
    assert listener.events[-1] == ("run_finished", "")


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    plugins = load_plugins([PLUGIN])
    made = parse_recipe("steps: {a: {wait: {}}}", plugins)
    with pytest.raises(EmbergeError, match=r"no Ray cluster at '127\.0\.0\.1:1': "):
        run_recipe(made, tmp_path, plugins, quiet=True, executor=Ray(address="127.0.0.1:1"))


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    request = StepRequest("a", tmp_path / "elsewhere", tmp_path / "log", tmp_path, {})
    ended = cluster.run_request(request, cluster.Resources(gpus=0, memory=None, threads=1))
    assert ended.code == EmbergeError.exit_code
    assert ended.last_lines.startswith(f"error: {tmp_path / 'elsewhere'} is not seen on ")
    assert ended.last_lines.endswith("on a disk that they share")


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = load_plugins([PLUGIN])
    made = parse_recipe("steps: {a: {wait: {}}}", plugins)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EmbergeError, match=r"pip install 'emberge\[ray\]'"):
        run_recipe(made, tmp_path, plugins, quiet=True, executor=Ray())
