"""The command line: what each verb prints, what mistakes get, exit codes, and signals that end a command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import RecipeError
from emberge.cli import arguments, verbs
from emberge.cli.main import Terminated, interrupted_by_signals, main

from tests.support.fixture_types import Capture, Patch
from tests.support.places import ROOT, SUPPORT
from tests.support.steps import RAN

LIMIT = 240  # seconds until a process is taken to hang
PLUGIN = ["--plugin", str(SUPPORT / "toy_plugin.py")]
RECIPE = """\
seed: 0
steps:
  a: {write: {word: A}}
  s: {scores: {of: [$a]}}
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: Patch) -> None:
    """In an empty folder, with no plugin but the toys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBERGE_BLOCK", "*")
    RAN.clear()


def write(text: str = RECIPE, name: str = "r.yaml") -> None:
    Path(name).write_text(text, "utf-8")


def call(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `emberge words…`."""
    capsys.readouterr()
    code = main([*words, *PLUGIN])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_the_help_of_every_verb_has_examples_that_parse(verb: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    examples = [
        line.strip() for line in text.partition("examples:")[2].splitlines() if line.strip()
    ]
    assert examples
    for example in examples:
        words = example.partition(" > ")[0].replace('"', "").split()
        if '"' not in example:  # words with spaces in them are for a shell to split
            after = words.index("emberge") + 1  # a launcher may come first
            assert arguments.parse(words[after:], {}).verb == verb


def test_a_run_prints_the_folder_of_each_result_and_takes_options(capsys: Capture) -> None:
    write()
    code, out, err = call(capsys, "run", "r.yaml", "--out", "out")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "a: out/a"
    assert "| model | score |" in out
    assert out.splitlines()[-1] == "s: out/s"
    assert Path("out/recipe.yaml").read_text() == RECIPE
    assert RAN == ["a", "s"]
    assert call(capsys, "run", "r.yaml", "--out", "out")[:2] == (0, out)
    assert RAN == ["a", "s"]
    code, out, _ = call(capsys, "status", "out")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[:2]] == [["a", "done"], ["s", "done"]]
    write()
    words = ("run", "r.yaml", "--out", "out", "--set", "a.write.word=B", "--quiet")
    assert call(capsys, *words)[0] == 0
    assert "B" in Path("out/a/config.json").read_text()
    assert Path("out/recipe.yaml").read_text().startswith("# run with --set a.write.word=B\n")


def test_a_locale_without_a_letter_ends_no_command() -> None:
    """As on a machine whose locale is not UTF-8; Python's own remedies for that are off."""
    write(RECIPE.replace("word: A", "word: Ä"))
    off = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    verbs = [["show", "infonce"], ["run", "r.yaml", "--out", "out", *PLUGIN]]
    code = f"from emberge.cli.main import main; print([main(words) for words in {verbs!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **off, "EMBERGE_BLOCK": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert done.stdout.endswith(b"[0, 0]\n")
    assert json.loads(Path("out/a/config.json").read_text("utf-8")) == {"text": "Ä"}
    assert Path("out/recipe.yaml").read_text("utf-8").count("Ä") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("rum r.yaml --out out", "there is no verb 'rum'; did you mean 'run'?"),
        ("run r.yaml --outt out", "there is no option '--outt'; did you mean '--out'?"),
        ("run r.yam --out out", "r.yam: there is no such file, nor a shipped recipe"),
        ("run r.yaml --out out --devices cuda:77", "cuda:77 is not here"),
        ("status nowhere", "nowhere has no run of a recipe"),
        ("list --kind los", "there is no kind 'los'; did you mean 'loss'?"),
        ("recipes boom/demmo", "did you mean 'boom/demo'"),
    ],
)
def test_a_mistake_gets_one_line_and_no_file(words: str, says: str, capsys: Capture) -> None:
    write()
    code, out, err = call(capsys, *words.split())
    assert code == 2
    assert says in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert out == ""
    assert [p.name for p in Path().iterdir()] == ["r.yaml"]


def test_all_errors_of_a_check_are_reported_before_work_starts(capsys: Capture) -> None:
    text = "steps:\n  a: {write: {word: wrong}}\n  b: {write: {of: [./none], data: ./x.jsonl}}\n"
    for more, lines in (("", [2, 3, 3]), ("  c: {write: {wrod: grammar}}\n", [4])):
        write(text + more)
        for words in (("check", "r.yaml"), ("run", "r.yaml", "--out", "out")):
            code, _, err = call(capsys, *words)
            assert code == 2
            assert [line.split(": ")[1] for line in err.splitlines()] == [
                f"r.yaml:{n}" for n in lines
            ]
    assert RAN == []
    assert not Path("out").exists()


def test_warnings_do_not_stop_a_run_and_are_shown_once(capsys: Capture) -> None:
    write("steps:\n  a: {write: {word: odd}}\n")
    code, out, err = call(capsys, "check", "r.yaml")
    assert (code, err) == (0, "warning: r.yaml:2: this word is odd\n")
    assert "writes odd" not in out
    assert "a: plan\n  writes odd" in call(capsys, "check", "r.yaml", "--long")[1]
    assert "nothing wrong was found in 1 step: " in out
    code, _, err = call(capsys, "run", "r.yaml", "--out", "out")
    assert (code, err) == (0, "warning: r.yaml:2: this word is odd\n")
    write("steps:\n  a: {foreach: {n: [1, 2, 3]}, write: {word: odd, ticks: $n}}\n")
    _, out, _ = call(capsys, "check", "r.yaml", "--long")
    assert out.count("writes odd") == 1
    assert "a.n=1 and 2 more steps: plan\n  writes odd\n" in out


def test_weights_of_one_rank_are_not_split(capsys: Capture) -> None:
    write()
    code, _, err = call(capsys, "run", "r.yaml", "--out", "out", "--shard")
    assert (code, "give --ranks N" in err, RAN) == (2, True, [])


def test_failed_work_is_reported_with_its_step_and_exit_code(capsys: Capture) -> None:
    write("steps:\n  ok: {write: {word: fine}}\n  a: {write: {fail: data}}\n")
    code, out, err = call(capsys, "run", "r.yaml", "--out", "out")
    assert (code, err) == (2, "error: rows.jsonl:3: no anchor (in step 'a')\n")
    assert out == "ok: out/ok\n"  # what was done is told


def test_an_unforeseen_error_shows_a_traceback_only_with_debug(capsys: Capture) -> None:
    write("steps:\n  a: {write: {fail: bug}}\n")
    code, _, err = call(capsys, "run", "r.yaml", "--out", "out")
    assert (code, err) == (1, "error: ValueError in step 'a': a bug (--debug shows where)\n")
    code, _, err = call(capsys, "run", "r.yaml", "--out", "out", "--debug")
    assert code == 1
    assert "Traceback" in err
    assert "steps.py" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_and_the_same_command_continues_it(
    number: int, code: int, capsys: Capture
) -> None:
    write("steps:\n  a: {sleep: {}}\n")
    command = [sys.executable, "-m", "emberge", "run", "r.yaml", "--out", "out", *PLUGIN]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "sleeping\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (code, "stopped; the same command goes on from here\n")
    assert not Path("out/a").exists()
    capsys.readouterr()
    assert main(command[3:]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a: out/a"
    assert json.loads(Path("out/a/artifact.json").read_text())["details"] == {"went_on": True}


def test_a_merge_of_one_line_leaves_the_model(
    capsys: Capture, berts: list[Path], monkeypatch: Patch
) -> None:
    from sentence_transformers import SentenceTransformer

    monkeypatch.delenv("EMBERGE_BLOCK")
    for path, name in zip(berts, ("a", "b"), strict=False):
        shutil.copytree(path, name)
    words = ("merge", "a", "./b", "--strategy", "slerp", "--set", "t=0.25", "--out", "m", "--quiet")
    code, out, err = call(capsys, *words)
    assert (code, out, err) == (0, "merged: m\n", "")
    assert sorted(p.name for p in Path().iterdir()) == ["a", "b", "m"]
    assert SentenceTransformer("m", device="cpu").encode(["find the list"]).shape == (1, 32)
    code, _, err = call(capsys, *words)
    assert (code, err) == (2, "error: m exists already; remove it or choose another folder\n")
    assert artifact("m")["kind"] == "model"
    weights = Path("m/model.safetensors").read_bytes()
    Path("m/model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    code, _, err = call(capsys, "merge", "m", "b", "--out", "x", "--quiet")
    assert (code, "m/model.safetensors was changed after its step" in err) == (2, True)
    assert not Path("x").exists()


def artifact(folder: str) -> Any:
    return json.loads((Path(folder) / "artifact.json").read_text())


def test_plugins_and_shipped_recipes_are_written_and_shown(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(capsys, "new-plugin", "mine", "--out", "repository")
    assert (code, err) == (0, "")
    assert out.startswith("written: repository")
    assert Path("repository/pyproject.toml").is_file()
    assert "write" in call(capsys, "list")[1]
    assert "write" not in call(capsys, "list", "--kind", "loss")[1]
    assert "Writes a model folder" in call(capsys, "show", "write")[1]
    code, _, err = call(capsys, "show", "wride")
    assert (code, "did you mean 'write'" in err) == (2, True)
    assert "write" in call(capsys, "schema")[1]
    assert call(capsys, "recipes")[1].startswith("start here:\n  boom/demo")
    monkeypatch.setattr("emberge.options.component_pages.FOR_DEMOS", "Writes a model folder")
    found = (call(capsys, "list")[1], call(capsys, "list", "model")[1])
    assert [("  write " in text) for text in found] == [False, True]
    assert call(capsys)[1].count("\n  new-plugin ") == 0
    assert all(f"\n  {verb} " in call(capsys, "--long")[1] for verb in verbs.VERBS)
    assert "strategy: multi_slerp" in call(capsys, "recipes", "boom/demo")[1]


@pytest.mark.parametrize("path", ["file/inside", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_recipe_is_read(
    path: str, capsys: Capture
) -> None:
    Path("file").write_text("")
    code, _, error = call(capsys, "run", "recipe.yaml", "--out", "out", "--summary", path)
    assert code == 2
    assert f"argument --summary: {path}" in error
    assert "recipe.yaml" not in error


def test_a_missing_folder_of_an_output_is_made() -> None:
    main(["run", "recipe.yaml", "--out", "out", "--summary", "new/folder/summary.md"])  # no recipe
    assert Path("new/folder").is_dir()


def test_missing_words_are_named_and_after_two_dashes_none_is_an_option() -> None:
    with pytest.raises(RecipeError, match="arguments are required: RECIPE, --out"):
        arguments.parse(["run"], {})
    assert arguments.parse(["list", "--", "--kind"], {}).having == ["--kind"]


def raised_in(work: Callable[[], object]) -> type[BaseException]:
    with pytest.raises(KeyboardInterrupt) as raised, interrupted_by_signals():
        work()
    return raised.type


def test_a_signal_that_is_sent_twice_is_raised_once_and_a_later_one_again(
    monkeypatch: Patch,
) -> None:
    cleaned = threading.Event()

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.set()

    assert raised_in(work) is Terminated
    assert cleaned.is_set()
    monkeypatch.setattr("emberge.cli.main.REPEAT_SECONDS", 0.0)
    cleaned.clear()
    assert raised_in(work) is Terminated
    assert not cleaned.is_set()


def test_an_ignored_ctrl_c_stays_ignored_and_handlers_are_put_back(interruptible: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupted_by_signals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def interruptible():  # type: ignore[no-untyped-def]
    """Have Ctrl-C as a terminal has it: who starts tests in the background may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
