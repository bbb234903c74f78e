"""Two writers of one file, two outputs of one name, plugins that end the process: nothing is lost unsaid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from emberge import PluginError, run_recipe
from emberge.cli.main import main
from emberge.errors import CheckpointError
from emberge.files import replace_file, reserve, write_text

from tests.support.steps import Write, recipe, toy


@contextmanager
def another_process(held: Callable[[], object]) -> Iterator[None]:
    """Have another process enter a context for the block."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])
        with held():  # type: ignore[attr-defined]
            os.write(ready[1], b"1")
            os.read(go[0], 1)
        os._exit(0)
    os.close(go[0])
    try:
        os.read(ready[0], 1)
        yield
    finally:
        os.close(go[1])
        os.waitpid(child, 0)
        for end in ready:
            os.close(end)


def test_a_file_that_a_command_is_to_write_is_refused_to_a_second_one(
    tmp_path: Path, berts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any work is done, and the first one's result is kept."""
    out = tmp_path / "diff.json"
    words = ["diff", str(berts[0]), str(berts[1]), "--json", str(out), "--quiet"]
    with another_process(lambda: reserve(out)):
        assert main(["diff", "./none", "./neither", *words[3:]]) != 0
    assert f"{out}: another process is writing it" in capsys.readouterr().err
    assert not out.exists()
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_who_reserved_a_file_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever path it is named."""
    monkeypatch.chdir(tmp_path)
    with reserve(Path("a")), reserve(tmp_path / "b"):
        write_text(tmp_path / "a", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_second_writer_is_turned_away_and_what_a_killed_one_left_is_not_in_the_way(
    tmp_path: Path,
) -> None:
    with another_process(lambda: replace_file(tmp_path / "a")):
        with pytest.raises(CheckpointError, match="another process"):
            write_text(tmp_path / "a", "second")
        write_text(tmp_path / "b", "other")
    child = os.fork()
    if child == 0:
        with replace_file(tmp_path / "c"):
            os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.glob(".c.*.part"))) == 1
    write_text(tmp_path / "c", "whole")
    assert list(tmp_path.glob(".c.*")) == []


@pytest.mark.parametrize("second", ["x.json", "./x.json", "link/x.json"])
def test_two_outputs_of_one_name_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    second: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(".")
    assert main(["diff", "./a", "./b", "--json", "x.json", "--page", second]) == 2
    assert "--json and --page are one file" in capsys.readouterr().err


class Leaving(Write):
    """A step that ends the process as if all were well."""

    def run(self, workspace: object) -> object:  # type: ignore[override]
        raise SystemExit(0)


def test_a_step_that_exits_fails_and_the_others_still_run(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"step 'a' called sys.exit\(0\)"):
        run_recipe(recipe(a=Leaving(), b=Write(word="b")), tmp_path / "out", toy())
    assert (tmp_path / "out" / "b" / "artifact.json").is_file()
    assert not (tmp_path / "out" / "a").exists()
    assert '"failed"' in (tmp_path / "out" / ".status.json").read_text()


EXITING = """
import argparse, sys
from emberge import (hookimpl)
from emberge.plugin_verbs import (Verb)
{at_import}
def run(options, plugins):
    sys.exit(0)
@hookimpl
def register_verbs():
    return {{"leave": Verb(summary="leave", examples="emberge leave",
                           add_options=lambda parser: None, run=__name__ + ":run")}}
"""


@pytest.mark.parametrize("at_import", ["", "sys.exit(0)"])
def test_a_plugin_that_exits_is_an_error_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at_import: str
) -> None:
    file = tmp_path / "leaving.py"
    file.write_text(EXITING.format(at_import=at_import))
    assert main(["--plugin", str(file), "leave"]) == 2
    said = capsys.readouterr().err
    assert "sys.exit(0)" in said or "SystemExit(0)" in said


def test_a_listener_that_exits_is_dropped(tmp_path: Path) -> None:
    plugins = toy()

    class Listener:
        from emberge import hookimpl

        @hookimpl
        def run_started(self) -> None:
            raise SystemExit(0)

    plugins.register(Listener(), "leaving")
    with pytest.warns(RuntimeWarning, match="leaving"):
        run_recipe(recipe(a=Write()), tmp_path / "out", plugins)
    assert (tmp_path / "out" / "a" / "artifact.json").is_file()
