"""Checking recipes: every problem at once, each at its place, and nothing loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Literal

import pytest
from emberge import (
    DataRef,
    Expected,
    ModelRef,
    Preflight,
    Problem,
    RecipeError,
    check_recipe,
    hookimpl,
    parse_recipe,
    run_recipe,
)

from tests.support.places import ROOT
from tests.support.steps import Scores, Write, recipe, toy

SLOW, LIMIT = 6, 240


class Hub:
    """Finds `me/known`, has no network for all others, and answers for `me/slow` when all have asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str | None, str]] = []
        self.together = Barrier(SLOW)

    @hookimpl
    def locate_model(
        self, reference: str, revision: str | None, files: Literal["all", "metadata"]
    ) -> Path | None:
        self.asked.append((reference, revision, files))
        if reference == "me/known":
            return self.folder
        if reference == "me/slow":
            self.together.wait(LIMIT)
        raise ConnectionError("no network")


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_all_problems_are_reported_at_once_each_with_its_place(tmp_path: Path) -> None:
    model(tmp_path / "model")
    made = recipe(
        a=Write(word="wrong", of=(ModelRef("./modell", tmp_path),)),
        b=Write(word="odd", data=DataRef("./rows.jsonl", tmp_path)),
        s=Scores(of=(ModelRef("$a"),)),
    )
    report = check_recipe(made, toy())
    errors = [str(problem) for problem in report.errors]
    assert len(errors) == 3
    assert errors[0].startswith("toy.yaml:12: './modell': there is no such folder")
    assert errors[0].endswith("; did you mean 'model'?")
    assert errors[1] == "toy.yaml:11: this word is wrong"
    assert errors[2].startswith("toy.yaml:2: './rows.jsonl' is missing")
    assert report.of("warning") == (Problem("this word is odd", "toy.yaml:21", "warning"),)
    # Of a nothing can be planned, as a model that it needs is not there.
    assert [note.lines for note in report.notes] == [("writes odd",)]
    with pytest.raises(RecipeError) as caught:
        report.raise_errors()
    assert len(caught.value.problems) == 3


def test_a_hub_is_asked_once_for_each_model_and_only_for_configs(tmp_path: Path) -> None:
    hub = Hub(model(tmp_path / "model"))
    known = ModelRef("me/known@v1")
    report = check_recipe(recipe(a=Write(of=(known,)), b=Write(of=(known,))), toy(hub))
    assert report.problems == ()
    assert hub.asked == [("me/known", "v1", "metadata")]


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("text", ["me/away", "./base+me/away", "$b+me/away", "./adapter"])
def test_a_model_that_no_hub_shows_is_unseen_and_offline_no_hub_is_asked(
    text: str, deep: bool, tmp_path: Path
) -> None:
    model(tmp_path / "base")
    adapter = model(tmp_path / "adapter") / "adapter_config.json"
    adapter.write_text('{"base_model_name_or_path": "me/away"}')
    hub = Hub(tmp_path)
    made = recipe(b=Write(), a=Write(of=(ModelRef(text, tmp_path),)))
    (unseen,) = check_recipe(made, toy(hub), deep=deep).problems
    local = "no network, and there is no folder ./me/away"
    reason = local if deep else "the network is not used"
    assert str(unseen) == f"toy.yaml:22: '{text}' could not be seen: {reason}"
    assert unseen.severity == "unseen"
    assert [name for name, *_ in hub.asked] == ["me/away"] * deep


def test_offline_a_steps_adapter_on_this_disk_is_looked_for(tmp_path: Path) -> None:
    made = recipe(b=Write(), a=Write(of=(ModelRef("$b+./adapter", tmp_path),)))
    (error,) = check_recipe(made, toy(), deep=False).errors
    assert "there is no such folder" in str(error)


def test_slow_hubs_are_asked_in_parallel(tmp_path: Path) -> None:
    slow = tuple(ModelRef("me/slow", tmp_path / str(i)) for i in range(SLOW))
    hub = Hub(tmp_path)
    report = check_recipe(recipe(a=Write(of=slow)), toy(hub))
    assert "no network" in str(report.of("unseen")[0])
    assert len(hub.asked) == SLOW
    assert not hub.together.broken


def test_a_recipe_without_problems_runs_and_equal_problems_are_reported_once(
    tmp_path: Path,
) -> None:
    made = recipe(a=Write(of=(ModelRef("./m", tmp_path),)))
    (model(tmp_path / "m") / "config.json").write_text(json.dumps({"text": "t"}))
    check_recipe(made, toy()).raise_errors()
    assert (run_recipe(made, tmp_path / "out", toy())["a"].path / "config.json").exists()
    import dataclasses

    made = recipe(a=Write(word="wrong"), b=Write(word="wrong"))
    first, second = made.steps
    same = dataclasses.replace(second, lines=first.lines)
    report = check_recipe(dataclasses.replace(made, steps=(first, same)), toy())
    assert len(report.errors) == 1


def test_a_check_of_a_training_and_a_merge_imports_no_heavy_library(
    bert: Path, tmp_path: Path
) -> None:
    pairs, path = tmp_path / "pairs.jsonl", tmp_path / "r.yaml"
    pairs.write_text('{"query": "a", "pos": "b"}\n' * 64)
    path.write_text(
        f"steps:\n  a: {{train: {{model: {bert}, data: {pairs}, loss: infonce, "
        "sampler: batch_shuffle}}\n"
        f"  b: {{merge: {{models: [$a, {bert}]}}}}\n"
    )
    code = (
        "import sys; from emberge.cli.main import main; assert main(['check', sys.argv[1]]) == 0;"
        "print({'torch', 'transformers'} & sys.modules.keys())"
    )
    line = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


@dataclass(frozen=True, kw_only=True)
class Foretelling(Write):
    """Says what it will leave, and notes what the steps before it said."""

    size: int = 0

    def check(self, context: Preflight) -> Iterator[Problem]:
        told = [context.expected(reference) for reference in self.of]
        context.note("told", [str(one.checkpoints) if one else "nothing" for one in told])
        if self.size:
            context.expect(Expected(self.size))
        return iter(())


def test_a_step_announces_its_expected_result_to_later_steps(tmp_path: Path) -> None:
    model(tmp_path / "model")
    named = (
        ModelRef("$a"),
        ModelRef("$a.checkpoints"),
        ModelRef("$b"),
        ModelRef("./model", tmp_path),
    )
    made = recipe(a=Foretelling(size=7), b=Foretelling(), c=Foretelling(of=named))
    report = check_recipe(made, toy())
    assert [note.lines for note in report.notes if note.step == "c"] == [
        ("7", "7", "nothing", "nothing")
    ]


def places(text: str) -> dict[str, list[str]]:
    """The lines of a recipe that reading finds at fault, each with its messages."""
    found: dict[str, list[str]] = {}
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, toy())
    for problem in caught.value.problems:
        found.setdefault(problem.where.rpartition(":")[2], []).append(problem.message)
    return found


@pytest.mark.parametrize(
    "broken", ["{wrote: {}}", "{write: {wrod: x}}", "{}", "{write: {}, foreach: {a: 3}}", "[write]"]
)
def test_a_step_that_uses_a_faulty_step_has_no_problem_itself(broken: str) -> None:
    text = f"steps:\n  a: {broken}\n  b: {{write: {{of: $a, wrod: wrong}}}}\n"
    text += "  c: {write: {of: [$b, $a]}}\n"
    assert set(places(text)) == {"2", "3"}
