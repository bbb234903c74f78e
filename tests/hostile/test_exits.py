"""Steps and plugins that end the process are errors: nothing is lost unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import PluginError, run_recipe
from emberge.cli.main import main

from tests.support.steps import Write, recipe, toy


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


def test_a_plugin_that_exits_is_an_error_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["--plugin", str(tmp_path / "leaving.py"), "list"]) == 2
    assert "exit" in capsys.readouterr().err


def test_a_listener_that_exits_is_dropped(tmp_path: Path) -> None:
    plugins = toy()

    class Listener:
        from emberge import hookimpl

        @hookimpl
        def hear_event(self, event: object) -> None:
            raise SystemExit(0)

    plugins.register(Listener(), "leaving")
    with pytest.warns(RuntimeWarning, match="leaving"):
        run_recipe(recipe(a=Write()), tmp_path / "out", plugins)
    assert (tmp_path / "out" / "a" / "artifact.json").is_file()
