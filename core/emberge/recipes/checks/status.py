"""The state of the steps in an OUT, also while another process runs them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emberge.contracts import Artifact
from emberge.errors import EmbergeError, RequirementError
from emberge.files import (
    JSON_LIMIT,
    UnsoundFileError,
    lock_holder,
    read_json,
    read_regular,
    require_inside,
)
from emberge.recipes.recipe import Recipe
from emberge.recipes.run.workspace import PROGRESS
from emberge.results import (
    ARTIFACT,
    NoRunError,
    OutFolder,
    measure_folder,
    read_artifact,
    read_record,
)
from emberge.wording import human_size, prose, table_lines

State = Literal["done", "running", "waiting", "failed", "blocked", "stopped"]


@dataclass(frozen=True)
class StepStatus:
    """One step: its state, its bytes on disk, seconds of work, progress, and seconds left."""

    id: str
    kind: str
    state: State
    size: int = 0
    seconds: float | None = None
    done: float | None = None
    total: float | None = None
    unit: str = ""
    note: str = ""
    left: float | None = None


@dataclass(frozen=True)
class Status:
    """The steps of an OUT in order, and the process that is running them now."""

    steps: tuple[StepStatus, ...]
    holder: str | None

    @property
    def lines(self) -> Sequence[str]:
        """The state as lines of a table, one line per step."""
        width = max((len(step.id) for step in self.steps), default=0)
        rows = [
            f"{s.id:<{width}}  {s.state:<8}  {human_size(s.size) if s.size else '-':>8}  "
            f"{f'{s.seconds:.0f} s' if s.seconds is not None else '-':>7}  {_format_progress(s)}".rstrip()
            for s in self.steps
        ]
        return [
            *rows,
            f"running: {self.holder}" if self.holder else "nobody is running it now",
        ]


def status(out: Path) -> Status:
    """Return the state of the steps of an OUT's last run.

    Raises:
        EmbergeError: if there is no run in `out`.
    """
    out_folder = OutFolder(Path(out))
    try:
        steps = read_json(out_folder.status)["steps"]
        holder = lock_holder(out_folder.lock)
        shown = tuple(_read_step(step, out_folder, alive=holder is not None) for step in steps)
    except (FileNotFoundError, NotADirectoryError):
        raise NoRunError(f"{out} holds no run of a recipe") from None
    except (ValueError, KeyError, TypeError) as error:
        raise NoRunError(f"{out_folder.status} is damaged; run the recipe again") from error
    return Status(shown, holder)


def _read_step(step: dict[str, Any], out_folder: OutFolder, *, alive: bool) -> StepStatus:
    state: State = step["state"]
    listed = StepStatus(step["id"], step["kind"], state, note=step.get("error", ""))
    if state == "done":
        folder = out_folder.path / step["folder"]
        record = read_record(folder / ARTIFACT)
        if not record:
            return replace(listed, state="waiting", note="its result was removed")
        return replace(listed, size=measure_folder(folder), seconds=record.get("seconds"))
    if state not in ("running", "stopped") or "work" not in step:
        return listed
    work = out_folder.work / step["work"]
    progress = read_record(work / PROGRESS)
    return replace(
        listed,
        state=state if alive else "stopped",
        size=measure_folder(work),
        done=progress.get("done"),
        total=progress.get("total"),
        unit=progress.get("unit", ""),
        note=progress.get("note", ""),
        left=_estimate_seconds_left(progress) if alive and state == "running" else None,
    )


def _estimate_seconds_left(progress: dict[str, Any]) -> float | None:
    """Estimate the seconds left from the rate since the step began or resumed."""
    try:
        began, first = progress["since"]
        rate = (progress["done"] - first) / (progress["time"] - began)
        seconds_left = (progress["total"] - progress["done"]) / rate - (
            time.time() - progress["time"]
        )
    except (KeyError, ZeroDivisionError):
        return None
    return max(0.0, float(seconds_left))


def _format_progress(step: StepStatus) -> str:
    if step.done is None or not step.total:
        return step.note
    count_text = f"{_format_count(step.done)} of {_format_count(step.total)} {step.unit}".rstrip()
    progress_text = f"{step.done / step.total:.0%} ({count_text}"
    remaining_text = f" {_format_seconds(step.left)} left" if step.left is not None else ""
    return f"{progress_text}){remaining_text} {step.note}".rstrip()


def _format_count(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


def _format_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def read_result_table(folder: Path, artifact: Artifact) -> str:
    """Return the table that a result's artifact names; "" if the result's folder has none."""
    named = artifact.details.get("table")
    if not isinstance(named, str) or not named:
        return ""
    try:
        path = require_inside(folder / named, folder)
        return read_regular(path, limit=JSON_LIMIT).decode("utf-8", errors="replace").strip()
    except (OSError, UnsoundFileError):
        return ""


def results_shown(out: Path, recipe: Recipe) -> list[str]:
    """Return the lines shown after a run: the folder of each finished result, and its table if it has one."""
    try:
        done_steps = {step.id for step in status(out).steps if step.state == "done"}
    except EmbergeError:
        return []  # the run ended before its first step
    out_folder, lines = OutFolder(out), []
    for step in recipe.steps:
        link = out_folder.link(step.id)
        artifact = read_artifact(link) if step.id in done_steps else None
        if artifact is None:
            continue
        if table := read_result_table(link, artifact):
            lines += ["", table, ""]
        lines.append(f"{step.id}: {link}")
    return lines


def run_summary(out: Path, recipe: Recipe, error: BaseException | None) -> str:
    """Return a run's summary as Markdown; `error` ended the run, None if it succeeded."""
    try:
        steps = {step.id: step for step in status(out).steps}
    except EmbergeError:
        steps = {}  # the run ended before its first step
    out_folder = OutFolder(Path(out))
    shown = [steps[step.id] for step in recipe.steps if step.id in steps]
    lines = [
        *_describe_outcome(recipe, error),
        *_format_tables(shown, out_folder),
        *_format_costs(shown),
    ]
    return "\n".join(lines).strip() + "\n"


def _describe_outcome(recipe: Recipe, error: BaseException | None) -> Iterator[str]:
    name = prose(recipe.path.name if recipe.path is not None else "recipe")
    if error is None:
        yield f"## {name}: done"
    elif isinstance(error, RequirementError):
        yield f"## {name}: a requirement is not met"
    else:
        yield f"## {name}: failed"
    yield ""
    if error is not None:
        yield from (
            f"- {prose(line)}" for line in str(error).splitlines() or [type(error).__name__]
        )
        yield ""


def _format_tables(steps: list[StepStatus], out_folder: OutFolder) -> Iterator[str]:
    """Yield the table of each finished result that has one."""
    for step in steps:
        link = out_folder.link(step.id)
        artifact = read_artifact(link) if step.state == "done" else None
        if artifact is not None and (table := read_result_table(link, artifact)):
            yield from (f"### {prose(step.id)}", "", table, "")


def _format_costs(steps: list[StepStatus]) -> Iterator[str]:
    if not steps:
        return
    rows = [
        [
            step.id,
            step.kind,
            step.state,
            "–" if step.seconds is None else f"{step.seconds:.0f} s",
            human_size(step.size) if step.size else "–",
        ]
        for step in steps
    ]
    yield from ("### Steps", "")
    yield from table_lines(["step", "kind", "state", "time", "size"], rows, "lllrr")
