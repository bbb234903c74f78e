"""Small real steps for tests of running recipes; registered as the plugin `toy`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from emberge import (
    Artifact,
    DataError,
    DataRef,
    ModelRef,
    Plugins,
    Preflight,
    Problem,
    Step,
    Workspace,
    hookimpl,
)
from emberge.contracts import (
    Event,
    RunFinished,
    RunStarted,
    StepEvent,
    StepFailed,
    StepFinished,
    StepProgressed,
    StepSkipped,
    StepStarted,
    StepWarned,
)
from emberge.recipes import Recipe, RecipeStep

# What ran, in order; a test empties it.
RAN: list[str] = []


@dataclass(frozen=True, kw_only=True)
class Write(Step):
    """Writes a model folder out of words and of the models it is given."""

    produces = "model"
    word: str = "x"
    of: tuple[ModelRef, ...] = ()
    data: DataRef | None = None
    ticks: int = 3
    fail: str = ""
    stop_at: int | None = None
    checkpoints: tuple[int, ...] = ()
    unmet: tuple[str, ...] = ()
    warn: str = ""

    def check(self, context: Preflight) -> Iterable[Problem]:
        if self.word == "wrong":
            yield context.problem("this word is wrong", "word")
        if self.word == "odd":
            yield context.warning("this word is odd", "word")
        context.note("plan", [f"writes {self.word}"])

    def run(self, workspace: Workspace) -> Artifact:
        RAN.append(workspace.id)
        if self.fail:
            raise (
                DataError("rows.jsonl:3: no anchor") if self.fail == "data" else ValueError("a bug")
            )
        if self.warn:
            workspace.warn(self.warn)
        parents = [model for reference in self.of for model in workspace.models(reference)]
        done = workspace.work / "done"
        first = int(done.read_text()) if done.exists() else 0
        for tick in range(first, self.ticks):
            workspace.progress(tick, self.ticks, "tick", "ticking")
            workspace.metric("loss", 1.0 / (tick + 1), tick)
            if self.stop_at == tick and first == 0:
                raise KeyboardInterrupt
            done.write_text(str(tick))
        text = self.word + "".join((m.folder / "config.json").read_text() for m in parents)
        if self.data is not None:
            text += workspace.data(self.data).read_text()
        (workspace.folder / "config.json").write_text(json.dumps({"text": text}))
        for number in self.checkpoints:
            kept = workspace.folder / "checkpoints" / f"step-{number}"
            kept.mkdir(parents=True)
            (kept / "config.json").write_text(json.dumps({"at": number}))
        details = {"names": [m.name for m in parents]}
        return Artifact("model", size=self.ticks, details=details, unmet=tuple(self.unmet))


@dataclass(frozen=True, kw_only=True)
class Scores(Step):
    """Makes scores, which are no model."""

    produces = "scores"
    revision: ClassVar[int] = 1
    of: tuple[ModelRef, ...] = ()
    table: dict[str, float] = field(default_factory=dict)

    def run(self, workspace: Workspace) -> Artifact:
        RAN.append(workspace.id)
        (workspace.folder / "table.md").write_text("| model | score |\n| - | - |\n")
        return Artifact("scores", table="table.md")


class Toy:
    """The plugin."""

    @hookimpl
    def register_steps(self) -> Mapping[str, type[Step]]:
        return {"write": Write, "scores": Scores}


class Listener:
    """Remembers every event, and how the run ended."""

    WORDS: Mapping[type, str] = {
        StepStarted: "started",
        StepSkipped: "skipped",
        StepFailed: "failed",
        StepFinished: "finished",
        StepProgressed: "progressed",
    }

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.end: RunFinished | None = None

    @hookimpl
    def hear_event(self, event: Event) -> None:
        match event:
            case RunStarted(steps=steps):
                self.events.append(("run_started", ",".join(steps)))
            case StepWarned(message=message):
                self.events.append(("warned", message))
            case RunFinished(error=error):
                self.events.append(("run_finished", type(error).__name__ if error else ""))
                self.end = event
            case StepEvent(step=step) if type(event) in self.WORDS:
                self.events.append((self.WORDS[type(event)], step))


def toy(*more: object) -> Plugins:
    """Plugins with the toy steps and some listeners, and nothing that is installed."""
    plugins = Plugins()
    plugins.register(Toy(), "toy")
    for number, plugin in enumerate(more):
        plugins.register(plugin, f"more{number}")
    return plugins


def recipe(path: Path | None = None, seed: int = 0, text: str = "", **steps: Step) -> Recipe:
    """A recipe of toy steps by their ids, each at its own line of `toy.yaml`."""
    made = tuple(
        RecipeStep(
            id=name,
            group=name,
            kind="toy:write" if isinstance(step, Write) else "toy:scores",
            step=step,
            where=f"toy.yaml:{number}",
            lines={"word": f"toy.yaml:{number}1", "of": f"toy.yaml:{number}2"},
        )
        for number, (name, step) in enumerate(steps.items(), start=1)
    )
    return Recipe(seed, made, path, text)
