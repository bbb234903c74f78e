"""A Ray cluster of our own: nobody else reaches it, and its workers run nobody else's files."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from emberge import EmbergeError, Machine, hookimpl, load_plugins, parse_recipe, run_recipe
from emberge_ray import Ray, cluster

from tests.support.launched import PLUGIN
from tests.support.listening import Address, listening, with_children
from tests.support.planted import plant, ran
from tests.support.result_folders import folders

pytest.importorskip("ray", reason="needs the extra ray: pip install 'emberge[ray]'")

TEXT = "steps: {a: {wait: {name: a, ticks: 1}}, b: {wait: {name: b, ticks: 1, of: [$a]}}}"


class Watch:
    """A plugin that looks at the cluster while it is there."""

    def __init__(self) -> None:
        self.ports: dict[int, Address] = {}
        self.token = ""

    @hookimpl
    def step_finished(self) -> None:
        self.ports |= listening(with_children(os.getpid()))
        self.token = os.environ["RAY_AUTH_TOKEN"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_a_cluster_of_our_own_is_for_this_machine_and_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    folder = plant(tmp_path / "planted")
    monkeypatch.chdir(folder)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    plugins, watch = load_plugins([PLUGIN]), Watch()
    plugins.register(watch, "watch")
    results = folders(
        run_recipe(
            parse_recipe(TEXT, plugins),
            tmp_path / "out",
            plugins,
            machine=Machine(workers=2),
            quiet=True,
            launcher=Ray(),
        )
    )
    assert (results["b"] / "name").read_text() == "b"
    assert ran(folder) == []
    assert len(watch.ports) >= 4
    assert {port: str(a) for port, a in watch.ports.items() if not a.is_loopback} == {}
    assert len(watch.token) == 64
    assert not (tmp_path / ".ray").exists(), "the token is nowhere on disk"
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & os.environ.keys()


def test_a_cluster_that_others_could_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    with pytest.raises(EmbergeError, match=r"192\.0\.2\.7.*--launcher local"):
        cluster._require_loopback()
