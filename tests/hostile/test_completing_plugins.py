"""A plugin that completes a result cannot lose it: it is published, with a word on who failed."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import hookimpl, load_plugins, run_recipe
from emberge.cli.main import main
from emberge.plugins import Plugins

from tests.support.steps import Write, recipe, toy


def plugin(name: str, added: Callable[[], Any]) -> types.ModuleType:
    """A plugin that does this to complete a result, and to be told that a step is done."""
    module = types.ModuleType(name)

    @hookimpl
    def complete_result() -> Any:
        return added()

    module.complete_result = complete_result  # type: ignore[attr-defined]
    return module


def raises(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


def completed(out: Path, *added: Callable[[], Any]) -> tuple[dict[str, Any], Path]:
    """The record and the folder of a model that these complete."""
    plugins = toy()
    for number, each in enumerate(added):
        plugins.register(plugin(f"late{number}", each), f"late{number}")
    run_recipe(recipe(a=Write(word="A")), out, plugins, quiet=True)
    record: dict[str, Any] = json.loads((out / "a" / "artifact.json").read_text())
    return record, out / "a"


@pytest.mark.parametrize(
    ("added", "why"),
    [
        (raises(ValueError("no wax")), "no wax"),
        (raises(OSError("no disk")), "no disk"),
        (raises(SystemExit(0)), "0"),
        (raises(SystemExit("gone")), "gone"),
        (raises(AssertionError()), "AssertionError()"),
        (lambda: {"../seal.txt": "wax"}, "'../seal.txt' is no name"),
        (lambda: {"a/seal.txt": "wax"}, "'a/seal.txt' is no name"),
        (lambda: {".seal": "wax"}, "'.seal' is no name"),
        (lambda: {"artifact.json": "{}"}, "'artifact.json' is no name"),
        (lambda: {"seal.txt": b"wax"}, "a text, not bytes"),
        (lambda: {3: "wax"}, "3 is no name"),
        (lambda: 7, "not iterable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plugin_that_fails_to_complete_a_result_is_named_and_the_result_is_kept(
    added: Callable[[], Any], why: str, tmp_path: Path
) -> None:
    record, folder = completed(tmp_path / "out", added, lambda: {"other.txt": "kept"})
    (warning,) = record["warnings"]
    assert "'late0' has failed" in warning
    assert why in warning
    assert (folder / "config.json").is_file()
    assert (folder / "other.txt").read_text() == "kept"
    assert not (tmp_path / "out" / "seal.txt").exists()


def test_a_plugin_changes_no_file_of_the_step(tmp_path: Path) -> None:
    _, alone = completed(tmp_path / "alone")
    record, folder = completed(tmp_path / "out", lambda: {"config.json": "{}"})
    assert (folder / "config.json").read_bytes() == (alone / "config.json").read_bytes()
    assert "config.json" in record["warnings"][0]


def test_of_two_plugins_that_add_one_file_the_one_that_is_asked_first_does(tmp_path: Path) -> None:
    record, folder = completed(tmp_path / "out", lambda: {"x": "1"}, lambda: {"x": "2"})
    assert (folder / "x").read_text() == "2"
    assert "'late0' has failed" in record["warnings"][0]


def test_ctrl_c_ends_the_run_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        completed(tmp_path / "out", raises(KeyboardInterrupt()))
    assert not (tmp_path / "out" / "a").exists()


def test_a_merge_is_finished_whatever_is_blocked_that_others_complete_it_by(
    berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *map(str, berts[:2]), "--strategy", "linear", "--quiet", "--out"]
    for blocked in ("encoder", "index"):
        monkeypatch.setenv("EMBERGE_BLOCK", blocked)
        assert main([*words, str(tmp_path / blocked)]) == 0
        assert (tmp_path / blocked / "model.safetensors").is_file()
    weights = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("encoder", "index")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("error", [SystemExit(0), ValueError("deaf")])
def test_a_listener_that_exits_is_dropped_and_ends_nothing(error: BaseException) -> None:
    heard: list[str] = []
    module = types.ModuleType("deaf")

    @hookimpl
    def step_started(step: str) -> None:
        heard.append(step)
        raise error

    module.step_started = step_started  # type: ignore[attr-defined]
    plugins = Plugins()
    plugins.register(module, "deaf")
    with pytest.warns(RuntimeWarning, match="'deaf' failed at step_started"):
        plugins.announce("step_started", step="a")
    plugins.announce("step_started", step="b")
    assert heard == ["a"]


def test_a_plugin_that_exits_while_it_is_loaded_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["list", "--plugin", str(tmp_path / "leaves.py")]) != 0
    assert "leaves.py" in capsys.readouterr().err


def test_every_installed_plugin_completes_by_reading_alone() -> None:
    """What completes a result gets no way to write: it returns texts."""
    completing = load_plugins().hook.complete_result.get_hookimpls()
    assert [one.plugin_name for one in completing] == ["index"]
