"""The state of the steps in an OUT, also while another process runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

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
from emberge.results import ARTIFACT, NoRunError, OutFolder, read_artifact
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
        steps = [_check_entry(step) for step in read_json(out_folder.status)["steps"]]
    except (FileNotFoundError, NotADirectoryError):
        raise NoRunError(f"{out} holds no run of a recipe") from None
    except (ValueError, KeyError, TypeError) as error:
        raise NoRunError(f"{out_folder.status} is damaged; run the recipe again") from error
    holder = lock_holder(out_folder.lock)
    shown = tuple(_read_step(step, out_folder, alive=holder is not None) for step in steps)
    return Status(shown, str(holder) if holder else None)


def _check_entry(step: Any) -> dict[str, Any]:
    """Return a step's entry in the file of states.

    Raises:
        ValueError: if no run wrote such an entry.
    """
    if not isinstance(step, dict) or step.get("state") not in get_args(State):
        raise ValueError("a step has no state")
    texts = [step.get("id"), step.get("kind"), step.get("error", "")]
    folders = [step.get("work", "work"), step.get("folder", "folder")]
    if not all(isinstance(text, str) for text in (*texts, *folders)):
        raise ValueError("a step is not described by texts")
    if any(Path(name).name != name or len(name.encode()) > 255 for name in folders):
        raise ValueError("a step's folder is not in OUT")
    return step


def _read_step(step: dict[str, Any], out_folder: OutFolder, *, alive: bool) -> StepStatus:
    state: State = step["state"]
    listed = StepStatus(step["id"], step["kind"], state, note=step.get("error", ""))
    if state == "done":
        return _read_finished_step(listed, out_folder.path / step["folder"])
    if state not in ("running", "stopped"):
        return listed
    work = out_folder.work / step["work"] if "work" in step else out_folder.work
    progress = _read_progress(work / PROGRESS) if "work" in step else {}
    return StepStatus(
        listed.id,
        listed.kind,
        state if alive else "stopped",
        size=_measure_folder(work) if "work" in step else 0,
        done=progress.get("done"),
        total=progress.get("total"),
        unit=progress.get("unit", ""),
        note=progress.get("note", ""),
        left=_estimate_seconds_left(progress) if alive and state == "running" else None,
    )


def _read_progress(path: Path) -> dict[str, Any]:
    """Return the progress that a running step wrote, without values of a wrong type."""
    record = _read_record(path)
    texts = {key: record[key] for key in ("unit", "note") if isinstance(record.get(key), str)}
    progress_numbers = {
        key: record[key] for key in ("done", "total", "time") if _is_number(record.get(key))
    }
    rate_start = record.get("since")
    has_rate_start = (
        isinstance(rate_start, list) and len(rate_start) == 2 and all(map(_is_number, rate_start))
    )
    return {**texts, **progress_numbers, **({"since": rate_start} if has_rate_start else {})}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e15  # neither NaN nor infinite


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


def _read_finished_step(listed: StepStatus, folder: Path) -> StepStatus:
    record = _read_record(folder / ARTIFACT)
    if not record:
        return StepStatus(listed.id, listed.kind, "waiting", note="its result was removed")
    seconds = record.get("seconds")
    return StepStatus(
        *(listed.id, listed.kind, "done"),
        size=_measure_folder(folder),
        seconds=seconds if _is_number(seconds) else None,
    )


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


def _measure_folder(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue  # a running step removed it meanwhile
    return total


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except (OSError, ValueError, UnsoundFileError):
        return {}
    return record if isinstance(record, dict) else {}


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
