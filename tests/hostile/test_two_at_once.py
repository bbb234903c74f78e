"""Two writers of one file, and plugins that end the process: nothing is lost unsaid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from emberge import PluginError, run_recipe
from emberge.cli.main import main
from emberge.errors import CheckpointError
from emberge.files import replace_file, write_text

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
