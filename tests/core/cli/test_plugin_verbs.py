"""Verbs that plugins add: called, shown in the help, and refused where they clash."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
from emberge import PluginError, hookimpl
from emberge.cli.main import main
from emberge.plugin_verbs import Verb
from emberge.plugins import Plugins

PLUGIN = """\
from emberge import (DataError, hookimpl)
from emberge.plugin_verbs import (Verb, VerbOption)

def say(options, plugins):
    if options.word == "nothing":
        raise DataError("nothing: name a word")
    print(options.word.upper() if options.loud else options.word, options.memory)
    return 3

@hookimpl
def register_verbs():
    place = "emberge_plugin_file_speech:say"
    return {"say-word": Verb(summary="print a word", examples="emberge say-word hello",
                             options=(VerbOption("word", "the word", "WORD"),
                                      VerbOption("--loud", "in capitals")),
                             run=place, machine=True)}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("EMBERGE_BLOCK", "*")
    (tmp_path / "speech.py").write_text(PLUGIN, "utf-8")
    return str(tmp_path / "speech.py")


def verb(run: str = "module:function") -> Verb:
    return Verb(summary="do", examples="", run=run)


def registered(**verbs: object) -> Plugins:
    plugins, module = Plugins(), types.ModuleType("acme")
    module.register_verbs = hookimpl(lambda: verbs)  # type: ignore[attr-defined]
    plugins.register(module, "acme")
    return plugins


def test_a_plugins_verb_runs_with_its_options_and_mistakes_are_named(
    plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plugin", plugin, "say-word", "hello", "--loud", "--memory", "1GB"]) == 3
    assert capsys.readouterr().out == "HELLO 1GB\n"
    assert main(["say-word", "nothing", f"--plugin={plugin}"]) == 2
    assert capsys.readouterr().err == "error: nothing: name a word\n"
    assert main(["say-wrd", "--plugin", plugin]) == 2
    assert "did you mean 'say-word'" in capsys.readouterr().err
    assert main(["say-word", "a", "--lod", "--plugin", plugin]) == 2
    assert "'--loud'" in capsys.readouterr().err


def test_a_value_that_is_no_verb_is_refused() -> None:
    with pytest.raises(PluginError, match="'shout' of plugin 'acme' must be a Verb"):
        registered(shout=print)


def test_a_verb_with_a_taken_name_or_a_missing_function_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins, module = registered(shout=verb()), types.ModuleType("second")
    module.register_verbs = hookimpl(lambda: {"shout": verb()})  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="'shout' of plugin 'second'"):
        plugins.register(module, "second")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_python.py").write_text("def")
    (tmp_path / "leaving.py").write_text("raise SystemExit")
    for place in ("no_such_module:function", "function", "no_python:function", "leaving:function"):
        with pytest.raises(PluginError, match=f"{place} cannot be imported"):
            verb(place).call(None, Plugins())  # type: ignore[arg-type]
    from emberge.cli.arguments import parse

    with pytest.raises(PluginError, match="'run'"):
        parse(["status", "out"], {"run": verb()})


def test_a_verb_of_emberge_loads_no_plugin() -> None:
    code = (
        "import sys; from emberge.cli.main import main; main(['status', '.']);"
        "assert not any(name.startswith('emberge_') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_stopped_verb_says_whether_the_same_command_goes_on(
    plugin: str, capsys: pytest.CaptureFixture[str], resumes: bool
) -> None:
    text = PLUGIN.replace("machine=True", f"machine=True, resumes={resumes}")
    stopping = text.replace(
        "    print(options.word.", "    raise KeyboardInterrupt\n    print(options.word."
    )
    Path(plugin).write_text(stopping, "utf-8")
    assert main(["--plugin", plugin, "say-word", "run"]) == 130
    hint = "; the same command goes on from here" if resumes else ""
    assert capsys.readouterr().err == f"stopped{hint}\n"
