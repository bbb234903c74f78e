"""The state of the steps in an OUT, also while another process runs them, and the outcome of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emberge.contracts import Artifact
from emberge.errors import EmbergeError, RequirementError, UnsoundFileError
from emberge.files import JSON_LIMIT, FileLock, read_json, read_regular, require_inside
from emberge.recipes.recipe import Recipe
from emberge.results import (
    ARTIFACT,
    PROGRESS,
    NoRunError,
    OutFolder,
    measure_folder,
    read_artifact,
    read_record,
)
from emberge.wording import format_duration, format_markdown_table, format_size, to_markdown

State = Literal["done", "running", "waiting", "failed", "blocked", "stopped"]


@dataclass(frozen=True)
class StepStatus:
    """One step: its state, its bytes on disk, seconds of work, progress, and estimated seconds left."""

    id: str
    kind: str
    state: State
    size: int = 0
    seconds: float | None = None
    done: float | None = None
    total: float | None = None
    unit: str = ""
    note: str = ""
    seconds_left: float | None = None
    saved_step: int | None = None
    """The optimizer step after which a stopped training goes on; None without a training state."""

    @property
    def costs(self) -> tuple[str, str]:
        """The seconds of work and the size as texts; "-" if unknown."""
        seconds = f"{self.seconds:.0f} s" if self.seconds is not None else "-"
        return seconds, format_size(self.size) if self.size else "-"


@dataclass(frozen=True)
class Status:
    """The steps of an OUT in order, and the process that is running them now."""

    steps: tuple[StepStatus, ...]
    holder: str | None

    @property
    def lines(self) -> Sequence[str]:
        """The state as lines of a table, one line per step."""
        width = max((len(step.id) for step in self.steps), default=0)
        rows = []
        for step in self.steps:
            seconds, size = step.costs
            row = f"{step.id:<{width}}  {step.state:<8}  {size:>8}  {seconds:>7}"
            rows.append(f"{row}  {_format_progress(step)}".rstrip())
        holder = f"running: {self.holder}" if self.holder else "nobody is running it now"
        return [*rows, holder]


def read_status(out: Path) -> Status:
    """Return the state of the steps of an OUT's last run.

    Raises:
        EmbergeError: if there is no run in `out`.
    """
    out_folder = OutFolder(Path(out))
    try:
        steps = read_json(out_folder.status)["steps"]
        holder = FileLock(out_folder.lock).find_holder()
        shown = tuple(_read_step(step, out_folder, alive=holder is not None) for step in steps)
    except (FileNotFoundError, NotADirectoryError):
        raise NoRunError(f"{out} has no run of a recipe") from None
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
        files = record.get("files", ())
        missing = next((name for name in files if not (folder / name).is_file()), None)
        note = f"damaged: {missing} is missing" if missing else record.get("note", "")
        size, seconds = measure_folder(folder), record.get("seconds")
        return replace(listed, size=size, seconds=seconds, note=note)
    if state not in ("running", "stopped") or "work" not in step:
        return listed
    work = out_folder.work / step["work"]
    progress = read_record(work / PROGRESS)
    state = state if alive else "stopped"
    saved_step = out_folder.find_saved_step(work) if state == "stopped" else None
    if saved_step is not None:
        progress |= {"note": f"goes on after optimizer step {saved_step:,}"}
        if progress.get("unit") == "steps":  # those after the state are taken again
            progress["done"] = saved_step
    return replace(
        listed,
        state=state,
        saved_step=saved_step,
        size=measure_folder(work),
        done=progress.get("done"),
        total=progress.get("total"),
        unit=progress.get("unit", ""),
        note=progress.get("note", ""),
        seconds_left=_estimate_seconds_left(progress) if alive and state == "running" else None,
    )


def _estimate_seconds_left(progress: dict[str, Any]) -> float | None:
    """Estimate the seconds left from the rate since the step began or resumed."""
    try:
        began, first = progress["since"]
        rate = (progress["done"] - first) / (progress["time"] - began)
        left = (progress["total"] - progress["done"]) / rate - (time.time() - progress["time"])
    except (KeyError, ZeroDivisionError):
        return None
    return max(0.0, float(left))


def _format_progress(step: StepStatus) -> str:
    if step.done is None or not step.total:
        return step.note
    done, total = (f"{n:,.0f}" if n == round(n) else f"{n:,.1f}" for n in (step.done, step.total))
    count_text = f"{done} of {total} {step.unit}".rstrip()
    remaining_text = (
        f" {format_duration(step.seconds_left)} left" if step.seconds_left is not None else ""
    )
    return f"{step.done / step.total:.0%} ({count_text}){remaining_text} {step.note}".rstrip()


# ── the outcome of a run ────────────────────────────────────────────────────────────────────────


def read_result_table(folder: Path, artifact: Artifact) -> str:
    """Return the table that a result's artifact names; "" if the result's folder has none."""
    if not artifact.table:
        return ""
    try:
        path = require_inside(folder / artifact.table, folder)
        return read_regular(path, limit=JSON_LIMIT).decode("utf-8", errors="replace").strip()
    except (OSError, UnsoundFileError):
        return ""


def describe_finished_results(out: Path, recipe: Recipe) -> list[str]:
    """Return the lines shown after a run: the folder of each finished result, and its table if it has one."""
    lines: list[str] = []
    for step in _list_steps(out, recipe):
        if step.state == "done":
            table = _read_table(out, step)
            lines += ["", table, ""] if table else []
            lines.append(f"{step.id}: {OutFolder(out).locate_link(step.id)}")
    return lines


def describe_continuation(out: Path | None, start: str = "here") -> str:
    """Return that the same command goes on from `start` in `out`, and after which step of each training."""
    try:
        steps = read_status(out).steps if out is not None else ()
    except EmbergeError:
        steps = ()  # stopped before the first step, or by a verb that runs no recipe
    saved = [step for step in steps if step.saved_step is not None]
    places = [f"{step.id} after optimizer step {step.saved_step:,}" for step in saved]
    return f"the same command goes on from {start}" + (f": {', '.join(places)}" if places else "")


def format_summary(out: Path, recipe: Recipe, error: BaseException | None) -> str:
    """Return a run's summary as Markdown; `error` ended the run, None if it succeeded."""
    steps = _list_steps(out, recipe)
    lines = [*_describe_outcome(out, recipe, error)]
    for step in steps:
        table = _read_table(out, step) if step.state == "done" else ""
        lines += [f"### {to_markdown(step.id)}", "", table, ""] if table else []
    if steps:
        noted = {step.id: f": {step.note}" for step in steps if step.state == "done" and step.note}
        rows = [
            [step.id, step.kind, step.state + noted.get(step.id, ""), *step.costs] for step in steps
        ]
        head = ["step", "kind", "state", "time", "size"]
        lines += ["### Steps", "", *format_markdown_table(head, rows, "lllrr")]
    return "\n".join(lines).strip() + "\n"


def _list_steps(out: Path, recipe: Recipe) -> list[StepStatus]:
    try:
        steps = {step.id: step for step in read_status(out).steps}
    except EmbergeError:
        return []  # the run ended before its first step
    return [steps[step.id] for step in recipe.steps if step.id in steps]


def _read_table(out: Path, step: StepStatus) -> str:
    link = OutFolder(out).locate_link(step.id)
    try:
        artifact = read_artifact(link)
    except EmbergeError:
        return ""  # what ended the run is more important than a damaged record
    return read_result_table(link, artifact) if artifact is not None else ""


def _describe_outcome(out: Path, recipe: Recipe, error: BaseException | None) -> Iterator[str]:
    name = to_markdown(recipe.path.name if recipe.path is not None else "recipe")
    if error is None:
        yield from (f"## {name}: done", "")
        return
    if isinstance(error, KeyboardInterrupt):
        yield from (f"## {name}: stopped; {describe_continuation(out)}", "")
        return
    is_gate = isinstance(error, RequirementError)
    yield from (f"## {name}: {'a requirement is not met' if is_gate else 'failed'}", "")
    for line in str(error).splitlines() or [type(error).__name__]:
        yield f"- {to_markdown(line)}"
    yield ""
