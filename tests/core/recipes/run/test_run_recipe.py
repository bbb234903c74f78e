"""Running recipes: order, skipping, resuming, failing, and what stands in OUT afterwards."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest
from emberge import (
    Artifact,
    CheckpointError,
    DataError,
    DataRef,
    EmbergeError,
    FileRef,
    ModelRef,
    Plugins,
    RecipeError,
    RequirementError,
    Step,
    StepRef,
    Workspace,
    hookimpl,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.errors import OutInUseError
from emberge.files import FileLock
from emberge.recipes import Recipe, StepsFailedError
from emberge.recipes.run import step_run
from emberge.results import OutFolder, read_artifact

from tests.support.locked import other_process_holding
from tests.support.result_folders import artifact_of, folders
from tests.support.steps import RAN, Listener, Scores, Write, recipe, toy


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def text_of(out: Path, step: str) -> str:
    return str(json.loads((out / step / "config.json").read_text())["text"])


def test_threads_that_hash_import_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, start = list[str](), Thread.start

    def start_slowly(thread: Thread) -> None:
        starts.append(thread.name)
        time.sleep(0.05 * (thread.name == "import"))
        start(thread)

    monkeypatch.setattr("emberge.hashes.LARGE_FILE_BYTES", 1)
    monkeypatch.setattr(Thread, "start", start_slowly)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    run_recipe(recipe(a=Write(of=(ModelRef(str(tmp_path)),))), tmp_path / "out", toy())
    assert starts.count("import") == 1


def test_steps_run_in_order_and_each_result_has_a_relative_link(tmp_path: Path) -> None:
    listener = Listener()
    made = recipe(a=Write(word="A"), b=Write(word="B", of=(ModelRef("$a"),)))
    results = folders(run_recipe(made, tmp_path / "out", toy(listener)))
    assert results == {"a": tmp_path / "out" / "a", "b": tmp_path / "out" / "b"}
    assert text_of(tmp_path / "out", "b").startswith("B")
    assert not os.path.isabs(os.readlink(tmp_path / "out" / "a"))
    told = [event for event in listener.events if event[0] != "progressed"]
    assert told == [
        ("run_started", "a,b"),
        ("started", "a"),
        ("finished", "a"),
        ("started", "b"),
        ("finished", "b"),
        ("run_finished", ""),
    ]
    artifact = artifact_of(results["b"])
    assert (artifact.kind, artifact.size, artifact.details["names"]) == ("model", 3, ["a"])


def test_a_finished_step_is_skipped_also_after_out_was_moved(tmp_path: Path) -> None:
    made = recipe(a=Write(), b=Write(of=(ModelRef("$a"),)), s=Scores(of=(ModelRef("$b"),)))
    run_recipe(made, tmp_path / "out", toy())
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    RAN.clear()
    listener = Listener()
    run_recipe(made, tmp_path / "elsewhere", toy(listener))
    assert RAN == []
    assert [e for e in listener.events if e[0] == "skipped"] == [
        ("skipped", "a"),
        ("skipped", "b"),
        ("skipped", "s"),
    ]


def test_no_file_of_out_has_an_absolute_path(tmp_path: Path) -> None:
    made = recipe(
        path=tmp_path / "r.yaml", text="steps: {}\n", a=Write(), b=Write(of=(ModelRef("$a"),))
    )
    run_recipe(made, tmp_path / "out", toy())
    time.sleep(0.15)
    run_recipe(made, tmp_path / "out", toy())  # the hashes of settled files are written now
    for path in (tmp_path / "out").rglob("*"):
        if path.is_symlink():
            assert not os.path.isabs(os.readlink(path))
        elif path.is_file():
            assert str(tmp_path) not in path.read_text(), path


@pytest.mark.parametrize("change", [{"a": Write(word="other")}, {"seed": 1}, {"a": Write(ticks=4)}])
def test_changed_options_run_a_step_and_its_users(
    tmp_path: Path, change: dict[str, object]
) -> None:
    steps = {"a": Write(), "b": Write(word="b", of=(ModelRef("$a"),))}
    run_recipe(recipe(**steps), tmp_path, toy())
    old = (tmp_path / "a").resolve()
    RAN.clear()
    run_recipe(recipe(**{**steps, **change}), tmp_path, toy())  # type: ignore[arg-type]
    assert RAN == ["a", "b"]
    assert (tmp_path / "a").resolve() != old
    RAN.clear()
    run_recipe(recipe(**steps), tmp_path, toy())
    assert RAN == []  # the first results still stand
    assert (tmp_path / "a").resolve() == old


def test_the_content_of_inputs_decides_and_not_their_place(tmp_path: Path) -> None:
    def inputs(name: str, word: str) -> Write:
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "config.json").write_text(json.dumps({"text": word}))
        (folder / "model" / "README.md").write_text(name)
        (folder / "rows.jsonl").write_text(word)
        return Write(of=(ModelRef("./model", folder),), data=DataRef("./rows.jsonl", folder))

    out = tmp_path / "out"
    run_recipe(recipe(a=inputs("here", "one")), out, toy())
    run_recipe(recipe(a=inputs("there", "one")), out, toy())
    assert RAN == ["a"]
    made = recipe(a=inputs("here", "two"))
    run_recipe(made, out, toy())
    assert RAN == ["a", "a"]
    (tmp_path / "here" / "rows.jsonl").write_text("three")
    run_recipe(made, out, toy())
    assert RAN == ["a", "a", "a"]
    assert "two" in text_of(out, "a")


def test_an_interrupted_step_continues_and_each_metric_is_kept_once(tmp_path: Path) -> None:
    made = recipe(a=Write(ticks=5, stop_at=3))
    listener = Listener()
    with pytest.raises(KeyboardInterrupt):
        run_recipe(made, tmp_path, toy(listener))
    assert listener.events[-1] == ("run_finished", "KeyboardInterrupt")
    assert not (tmp_path / "a").exists()
    run_recipe(made, tmp_path, toy())
    rows = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [row["at"] for row in rows] == [0, 1, 2, 3, 4]
    everything = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(everything) > len(rows)  # the run's own file tells what was really done
    assert set(json.loads(everything[0])) == {"time", "step", "fingerprint", "name", "value", "at"}
    assert list((tmp_path / ".work").iterdir()) == []


def test_a_removed_or_incomplete_result_is_made_again(tmp_path: Path) -> None:
    run_recipe(recipe(a=Write()), tmp_path, toy())
    metrics = tmp_path / "metrics.jsonl"
    # A kill leaves half a line, and a power cut zeros.
    metrics.write_bytes(metrics.read_bytes() + b'{"time": 1\0\0\n\0')
    run_recipe(recipe(a=Write(word="y")), tmp_path, toy())
    assert all(json.loads(line) for line in metrics.read_text().splitlines())
    run_recipe(recipe(a=Write()), tmp_path, toy())
    RAN.clear()
    (tmp_path / "a" / "artifact.json").unlink()
    run_recipe(recipe(a=Write()), tmp_path, toy())
    assert RAN == ["a"]
    assert read_artifact(tmp_path / "a") is not None


def test_a_failing_step_stops_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    listener = Listener()
    made = recipe(
        a=Write(word="a", fail="data"),
        b=Write(word="b", of=(ModelRef("$a"),)),
        c=Write(word="c", of=(ModelRef("$b"),)),
        d=Write(word="d"),
    )
    with pytest.raises(DataError, match="no anchor") as caught:
        run_recipe(made, tmp_path, toy(listener))
    assert caught.value.__notes__ == ["in step 'a'"]
    assert RAN == ["a", "d"]
    assert listener.end is not None
    assert listener.end.blocked == ("b", "c")
    assert listener.end.results == {"d": tmp_path / "d"}
    assert not (tmp_path / "a").exists()
    assert [p.name[:2] for p in (tmp_path / ".work").iterdir()] == ["a-"]


def test_several_failures_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(StepsFailedError) as caught:
        run_recipe(recipe(a=Write(fail="data"), b=Write(fail="bug")), tmp_path, toy())
    assert str(caught.value).splitlines() == [
        "step 'a': rows.jsonl:3: no anchor",
        "step 'b': a bug",
    ]
    assert "Traceback" in (tmp_path / "run.log").read_text()


def test_an_unmet_requirement_ends_the_run_after_all_else_is_done(tmp_path: Path) -> None:
    made = recipe(a=Write(unmet=("boom is worse than base",)), b=Write(word="b"))
    for _ in range(2):  # also when the step was finished before
        with pytest.raises(RequirementError, match="step 'a': not met: boom is worse"):
            run_recipe(made, tmp_path, toy())
    assert RAN == ["a", "b"]
    assert (tmp_path / "b").exists()


def test_warnings_are_shown_and_kept_with_the_artifact(tmp_path: Path) -> None:
    listener = Listener()
    made = recipe(a=Write(warn="few rows", ticks=5, stop_at=2))
    with pytest.raises(KeyboardInterrupt):
        run_recipe(made, tmp_path, toy(listener))
    run_recipe(made, tmp_path, toy(listener))
    artifact = artifact_of(tmp_path / "a")
    assert artifact.warnings == ("few rows",)
    assert listener.events.count(("warned", "few rows")) == 2  # once a run


def test_a_reference_to_no_step_or_to_a_result_that_is_no_model_is_refused(tmp_path: Path) -> None:
    made = recipe(
        a=Write(checkpoints=(100, 20, 3)), b=Write(word="b", of=(ModelRef("$a.checkpoints"),))
    )
    results = folders(run_recipe(made, tmp_path, toy()))
    artifact = artifact_of(results["b"])
    assert artifact.details["names"] == ["a/step-3", "a/step-20", "a/step-100"]
    made = recipe(a=Write(), b=Write(word="b", of=(ModelRef("$a.checkpoints"),)))
    with pytest.raises(CheckpointError, match=r"\$a\.checkpoints.*kept no checkpoints"):
        run_recipe(made, tmp_path, toy())
    made = recipe(s=Scores(), b=Write(of=(ModelRef("$s"),)))
    with pytest.raises(CheckpointError, match="made scores, and no model"):
        run_recipe(made, tmp_path, toy())
    with pytest.raises(EmbergeError, match="names no step"):
        run_recipe(recipe(a=Write(of=(StepRef("./x"),))), tmp_path, toy())  # type: ignore[arg-type]


def test_something_in_the_place_of_a_link_or_out_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").write_text("precious")
    with pytest.raises(EmbergeError, match="in the way"):
        run_recipe(recipe(a=Write()), tmp_path, toy())
    assert (tmp_path / "a" / "mine").read_text() == "precious"
    assert not (tmp_path / ".work").exists()  # before any step
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "recipe.yaml").write_bytes(b"mine \xff")
    with pytest.raises(EmbergeError, match="written by no run"):
        run_recipe({"steps": {"a": {"write": {}}}}, tmp_path / "own", toy())
    assert (tmp_path / "own" / "recipe.yaml").read_bytes() == b"mine \xff"
    (tmp_path / "out").write_text("")
    with pytest.raises(EmbergeError, match="choose another folder"):
        run_recipe(recipe(a=Write()), tmp_path / "out", toy())


def test_a_second_run_in_one_out_is_told_which_process_uses_it(tmp_path: Path) -> None:
    with other_process_holding(tmp_path) as pid, pytest.raises(OutInUseError) as caught:
        run_recipe(recipe(a=Write()), tmp_path, toy())
    assert f"process {pid} on " in str(caught.value)
    assert "since 20" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_step_is_not_entered_while_another_process_works_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was given up for lost and is not."""
    made = recipe(a=Write())
    run_recipe(made, tmp_path, toy())
    fingerprint = json.loads((tmp_path / "a" / "artifact.json").read_text())["fingerprint"]
    (tmp_path / "a" / "artifact.json").unlink()
    work = OutFolder(tmp_path).locate_work("a", fingerprint)
    work.mkdir(parents=True)
    monkeypatch.setattr(step_run, "LEAVING_SECONDS", 0.1)
    with (
        FileLock(work / ".lock").lock(),
        pytest.raises(OutInUseError, match=f"process {os.getpid()} on "),
    ):
        run_recipe(made, tmp_path, toy())


@dataclass(frozen=True, kw_only=True)
class Stumbles(Step):
    """A step that fills its folder, and fails the first time."""

    produces = "file"

    def run(self, workspace: Workspace) -> Artifact:
        first = workspace.work / "first"
        assert not any(workspace.folder.iterdir())
        if first.exists():
            (workspace.folder / "new.txt").write_text("new")
            return Artifact("file", details={"file": "new.txt"})
        first.touch()
        (workspace.folder / "part").mkdir()
        (workspace.folder / "part" / "old.txt").write_text("old")
        (workspace.folder / "linked").symlink_to(workspace.folder / "part")
        raise DataError("stumbled")


def test_a_continued_step_starts_with_an_empty_folder(tmp_path: Path) -> None:
    made = recipe(a=Stumbles())
    with pytest.raises(DataError, match="stumbled"):
        run_recipe(made, tmp_path / "out", toy())
    run_recipe(made, tmp_path / "out", toy())
    found = {path.name for path in (tmp_path / "out" / "a").rglob("*")}
    assert found == {"new.txt", "artifact.json"}


@dataclass(frozen=True)
class Draw(Write):
    """Writes the seed that it draws by."""

    seed: int | None = None

    def run(self, workspace: Workspace) -> Artifact:
        (workspace.folder / "seed.txt").write_text(str(workspace.seed))
        return super().run(workspace)


def test_a_step_draws_by_its_own_seed_or_else_the_recipes(tmp_path: Path) -> None:
    given = recipe(seed=3, a=Draw(seed=5), b=Draw(word="y"), c=Draw(seed=0, word="z"))
    run_recipe(given, tmp_path, toy())
    assert [(tmp_path / step / "seed.txt").read_text() for step in "abc"] == ["5", "3", "0"]


@dataclass(frozen=True, kw_only=True)
class Square(Step):
    """Square a number."""

    number: int

    def run(self, workspace: Workspace) -> Artifact:
        return Artifact("file", details={"square": self.number**2})


@dataclass(frozen=True, kw_only=True)
class SumOfSquares(Step):
    """Add up squares, each of which is a step of its own."""

    numbers: tuple[int, ...]
    _parts: dict[str, StepRef] = field(default_factory=dict)

    def expand(self) -> Mapping[str, Step]:
        return {f"of={n}": Square(number=n) for n in self.numbers} if self.numbers else {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return dataclasses.replace(self, _parts=dict(parts))

    def run(self, workspace: Workspace) -> Artifact:
        found = [workspace.artifact(one)[1].details["square"] for one in self._parts.values()]
        return Artifact("file", details={"sum": sum(found)})


@dataclass(frozen=True, kw_only=True)
class Use(Step):
    """Read one file."""

    file: FileRef

    def run(self, workspace: Workspace) -> Artifact:
        return Artifact("file", details=dict(workspace.artifact(self.file)[1].details))


def plugins() -> Plugins:
    module = ModuleType("summing")

    @hookimpl
    def register_steps() -> Mapping[str, type[Step]]:
        return {"square": Square, "sum_of_squares": SumOfSquares, "use": Use}

    vars(module)["register_steps"] = register_steps
    found = Plugins()
    found.register(module, "summing", "summing", "1.0")
    return found


def read(text: str) -> Recipe:
    return parse_recipe(text, plugins())


TEXT = "steps: {all: {sum_of_squares: {numbers: [1, 2, 3]}}, then: {use: {file: $all}}}"


def test_the_gathering_step_has_the_id_and_all_that_the_parts_made(tmp_path: Path) -> None:
    recipe = read(TEXT)
    assert [step.id for step in recipe.steps] == ["all.of=1", "all.of=2", "all.of=3", "all", "then"]
    assert recipe.steps[3].needs == ("all.of=1", "all.of=2", "all.of=3")
    assert recipe.steps[4].needs == ("all",)
    run_recipe(read(TEXT), tmp_path / "out", plugins(), quiet=True)
    for step in ("all", "then"):
        assert '"sum": 14' in (tmp_path / "out" / step / "artifact.json").read_text()


def test_a_step_of_one_part_gathers_nothing_and_parts_are_no_option() -> None:
    assert [step.id for step in read("steps: {all: {sum_of_squares: {numbers: []}}}").steps] == [
        "all"
    ]
    with pytest.raises(RecipeError, match="has no option '_parts'"):
        read("steps: {all: {sum_of_squares: {numbers: [1], _parts: {}}}}")


PLUGIN = '''
from dataclasses import dataclass

from emberge import Loss, hookimpl


@dataclass(frozen=True, kw_only=True)
class Margin(Loss):
    """Return a number."""

    def compute(self, embeddings, *, step=0):
        return 1


@hookimpl
def register_losses():
    return {"margin": Margin}
'''


STEPS = '''
from dataclasses import dataclass

from emberge import Artifact, Loss, Step, hookimpl


@dataclass(frozen=True, kw_only=True)
class Number(Step):
    """Write the number of a loss, or its own."""

    loss: Loss | None = None
    """Loss that gives the number."""
    produces = "file"

    def run(self, workspace):
        number = 5 if self.loss is None else self.loss.compute(None)
        (workspace.folder / "number").write_text(str(number))
        return Artifact("file")


@hookimpl
def register_steps():
    return {"number": Number}
'''


RECIPE = "steps:\n  with_loss: {number: {loss: margin}}\n  without: {number: {}}\n"


def run_both(place: Path) -> dict[str, str]:
    """Run the recipe with the plugin files in `place`; return each step's number and result folder."""
    plugins = load_plugins([place / "margin.py", place / "number.py"], block=["*"])
    results = run_recipe(parse_recipe(RECIPE, plugins), place / "out", plugins)
    return {
        name: f"{(result.path / 'number').read_text()} {result.path.resolve().name}"
        for name, result in results.items()
    }


def test_a_step_is_done_again_if_the_file_of_its_loss_was_edited_and_names_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "number.py").write_text(STEPS)
    (tmp_path / "margin.py").write_text(PLUGIN)
    os.utime(tmp_path / "margin.py", (1e9, 1e9))
    before = run_both(tmp_path)
    assert run_both(tmp_path) == before
    text = (tmp_path / "out" / "with_loss" / "artifact.json").read_text()
    for name in ("number.py", "margin.py"):
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert f"file {name} sha256:{digest}" in text
    # Of equal size and time: Python's cache of compiled files would not notice the edit.
    (tmp_path / "margin.py").write_text(PLUGIN.replace("return 1", "return 2"))
    os.utime(tmp_path / "margin.py", (1e9, 1e9))
    after = run_both(tmp_path)
    assert (before["with_loss"][0], after["with_loss"][0]) == ("1", "2")
    assert after["without"] == before["without"]  # it uses nothing of the edited file
