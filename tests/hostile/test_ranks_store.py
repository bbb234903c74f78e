"""Whoever reaches the store of a run's ranks runs nothing there, and nobody on another machine reaches it."""

from __future__ import annotations

import ast
import contextlib
import datetime
import os
import pickle
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emberge.processes import LISTENER, SECRET, RankProcesses
from emberge.ranks import Ranks
from emberge.ranks.signed_store import ForgedError, SignedStore, join_store
from torch.distributed import HashStore, TCPStore

from tests.support.listening import listening
from tests.support.sources import CORE, PLUGINS, ROOT, python_files

PATIENCE = datetime.timedelta(seconds=30)
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Bomb:
    """An object that touches a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return (open, (str(self.path), "w"))


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[bytes]:
    """A pickle; after the test it was not loaded."""
    mark = tmp_path / "loaded"
    yield pickle.dumps(Bomb(mark))
    assert not mark.exists()


def test_the_bomb_goes_off_where_a_pickle_is_loaded(tmp_path: Path) -> None:
    """Otherwise the other tests would show nothing."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "loaded"))).close()
    assert (tmp_path / "loaded").exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What `--ranks 2` tells its second rank, which is not started; this process is the first."""
    told: list[dict[str, str]] = []

    def never(words: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        told.append(env)
        return SimpleNamespace(stdin=SimpleNamespace(close=lambda: None), kill=lambda: None)

    for name in (*TOLD, *INTERFACES, SECRET, LISTENER):
        monkeypatch.setenv(name, "")  # restored afterwards, whatever is set in between
        monkeypatch.delenv(name)
    monkeypatch.setattr(RankProcesses, "_watch", lambda *_: None)
    monkeypatch.setattr(subprocess, "Popen", never)
    ranks = RankProcesses(["run"], 2)
    yield told[0]
    ranks.stop()
    assert not {*TOLD, SECRET, LISTENER} & os.environ.keys()


@contextlib.contextmanager
def joined(second: dict[str, str]) -> Iterator[tuple[SignedStore, TCPStore]]:
    """The first rank's store, and a connection to it of somebody who knows its port and not its secret."""
    found: list[TCPStore] = []

    def connect() -> None:
        found.append(
            TCPStore(second["MASTER_ADDR"], int(second["MASTER_PORT"]), 2, False, PATIENCE)
        )

    thread = threading.Thread(target=connect)
    thread.start()
    store, rank, size = join_store(PATIENCE)
    thread.join()
    assert (rank, size) == (0, 2)
    yield store, found[0]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_the_store_of_ranks_is_found_on_this_machine_alone(started: dict[str, str]) -> None:
    before = listening([os.getpid()])
    port = int(started["MASTER_PORT"])
    assert before[port].is_loopback, "from the start, so that nobody can take its port"
    with joined(started):
        assert listening([os.getpid()])[port].is_loopback
        assert [os.environ[name] for name in INTERFACES] == ["lo", "lo"]


def test_a_stranger_runs_nothing_by_writing_to_the_store(
    started: dict[str, str], bomb: bytes
) -> None:
    assert len(started[SECRET]) == 64
    assert LISTENER not in started
    with joined(started) as (store, stranger):
        ranks = Ranks(1, 2, store=store)
        stranger.set("emberge/call/1", bomb)
        with pytest.raises(ForgedError, match=r"'emberge/call/1'.*127\.0\.0\.1:\d+"):
            ranks.receive("call/1")
        stranger.set("group/0//cpu//0/1", bomb)
        with pytest.raises(ForgedError):
            store.get("group/0//cpu//0/1")


@pytest.fixture
def pair() -> tuple[Ranks, Ranks, HashStore]:
    """Two ranks, and the store that both and others write to."""
    shared = HashStore()
    first, second = (Ranks(rank, 2, store=SignedStore(shared, "s", "here:1")) for rank in (0, 1))
    return first, second, shared


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.1, float("-inf"), "word", [1, [2.5]], {"a": {"b": None}}]
)
def test_ranks_tell_each_other_values_of_json(pair: Any, value: Any) -> None:
    first, second, _ = pair
    first.send("key", value)
    assert second.receive("key") == value


@pytest.mark.parametrize("value", [{1, 2}, Path("a"), b"bytes", torch.ones(1), Bomb(Path("none"))])
def test_ranks_send_nothing_that_json_has_no_form_for(pair: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        pair[0].send("key", value)


@pytest.mark.parametrize(
    "forge",
    [
        lambda _: b"",
        lambda signed: signed[:31],
        lambda signed: signed[:-1],
        lambda signed: signed + b" ",
        lambda signed: bytes(32) + signed[32:],
        lambda signed: signed[32:],
    ],
    ids=["empty", "cut within the signature", "cut", "longer", "no signature", "the value alone"],
)
def test_a_message_that_was_changed_is_refused(pair: Any, forge: Callable[[bytes], bytes]) -> None:
    first, second, shared = pair
    first.send("key", [1, 2])
    shared.set("emberge/key", forge(shared.get("emberge/key")))
    with pytest.raises(ForgedError):
        second.receive("key")


def test_a_message_is_refused_under_another_key_and_by_ranks_of_another_run(pair: Any) -> None:
    first, second, shared = pair
    first.send("call/1", {"step": "a"})
    shared.set("emberge/call/2", shared.get("emberge/call/1"))
    with pytest.raises(ForgedError):
        second.receive("call/2")
    other = Ranks(1, 2, store=SignedStore(shared, "another secret", "here:1"))
    with pytest.raises(ForgedError):
        other.receive("call/1")


NAMED = re.compile(
    r"pickle\b|cloudpickle|dill|shelve|marshal|joblib|allow_pickle|torch\.load"
    r"|(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?$"
)
LOADING = re.compile(NAMED.pattern.replace("$", ""))


def pickling(file: Path) -> Iterator[str]:
    """Lines that load pickles, or have torch load them: its collectives of objects."""
    text = file.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if LOADING.search(text) else ():
        names = set()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            names = {node.attr}
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            names = {"" if ast.unparse(node.value) == "False" else "allow_pickle"}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            safe = any(ast.unparse(k) == "weights_only=True" for k in node.keywords)
            names = {"" if safe else "torch.load"}
        if any(NAMED.match(name) for name in names):
            yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_nothing_in_the_project_loads_a_pickle() -> None:
    """The one that a user asks to convert, torch reads as weights only."""
    assert not [place for file in python_files(CORE, PLUGINS) for place in pickling(file)]


def test_the_rule_on_pickles_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loads.py"
    file.write_text(
        "import pickle\ndist.all_gather_object(a, b)\nnp.load(p, allow_pickle=True)\n"
        "torch.load(p)\ntorch.load(p, weights_only=True)\nnp.load(p, allow_pickle=False)\n"
    )
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert sorted(int(place.rpartition(":")[2]) for place in pickling(file)) == [1, 2, 3, 4]
