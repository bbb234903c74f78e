"""The fuzzer sees each kind of fault: commands that have it are run in the place of emberge's."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import emberge.cli.main
import pytest

from tests.support.fuzz import mutations, sandbox
from tests.support.fuzz.sandbox import SECRET, Case, Place, Sandbox

Command = Callable[[Sequence[str]], int]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Command], str]:
    """Run a command in the sandbox and return the verdict."""
    monkeypatch.setattr(sandbox, "HANG", 1.0)

    def run(command: Command, *, patient: bool = False, opens: str = "") -> str:
        def build(place: Place) -> Case:
            (place.given / "model").mkdir()
            opened = place.given / opens if opens else None
            return Case([[str(place.root)]], opens=opened, patient=patient)

        monkeypatch.setattr(emberge.cli.main, "main", command)
        return Sandbox(tmp_path / "case", tmp_path / "cache").run("one", build).kind

    return run


def wait(_: Sequence[str]) -> int:
    time.sleep(60)
    return 0


def wait_whatever_comes(_: Sequence[str]) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            continue
    return 0


def unforeseen(_: Sequence[str]) -> int:
    print("error: KeyError: 'x' (--debug shows where)")
    return 1


def write_outside(words: Sequence[str]) -> int:
    Path(words[0], "outside", "new").write_text("x")
    return 0


def change_what_is_given(words: Sequence[str]) -> int:
    Path(words[0], "given", "new").write_text("x")
    return 2


def copy_the_secret(words: Sequence[str]) -> int:
    Path(words[0], "out", "copy").write_text(f"before\n{SECRET}\nafter")
    return 0


def start_a_program(_: Sequence[str]) -> int:
    return subprocess.run(["true"], check=False).returncode


def call_another_machine(_: Sequence[str]) -> int:
    import socket

    with socket.socket() as made:
        made.setblocking(False)
        made.connect(("192.0.2.1", 9))
    return 0


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        (lambda _: 0, "done"),
        (lambda _: 2, "refused"),
        (wait, "hang"),
        (wait_whatever_comes, "hang"),
        (unforeseen, "traceback"),
        (lambda _: os.abort(), "crash"),
        (lambda _: 1 // 0, "crash"),
        (write_outside, "outside"),
        (change_what_is_given, "outside"),
        (copy_the_secret, "leak"),
        (start_a_program, "escaped"),
        (call_another_machine, "escaped"),
    ],
)
def test_a_fault_has_its_verdict(
    judged: Callable[[Command], str], command: Command, verdict: str
) -> None:
    assert judged(command) == verdict


def test_waiting_for_a_server_is_no_hang_if_it_can_be_interrupted(
    judged: Callable[..., str],
) -> None:
    assert judged(wait, patient=True) != "hang"
    assert judged(wait_whatever_comes, patient=True) == "hang"


def test_a_model_that_cannot_be_opened_is_unsound(
    judged: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_as_users_would(folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise OSError("no config.json")

    monkeypatch.setattr(sandbox, "_open", open_as_users_would)
    assert judged(lambda _: 0, opens="model") == "unsound"
    assert judged(lambda _: 2, opens="model") == "refused"


def test_memory_beyond_the_limit_is_a_fault(
    judged: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(lambda _: 0) == "done"
    monkeypatch.setattr(sandbox, "MEMORY", 1 << 20)
    assert judged(lambda _: 0) == "memory"


def test_a_case_is_known_by_its_seed_and_number() -> None:
    text = "steps:\n  merged:\n    merge: {models: [./a, ./b], strategy: linear}\n"
    drawn = [mutations.change_recipe(random.Random(f"7 recipes {n}"), text) for n in range(40)]
    again = [mutations.change_recipe(random.Random(f"7 recipes {n}"), text) for n in range(40)]
    assert drawn == again
    assert len(set(drawn)) > 20
