"""Progress of a run: a line for what happens to a step, and in a terminal a bar for each running step."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from emberge import hookimpl
from emberge.wording import printable

if TYPE_CHECKING:
    from rich.progress import Task

_PLAIN_LINES = 10  # lines of progress for a step


class RunView:
    """View of one run: lines above bars in a terminal, and lines alone in a notebook and elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        """Open the view, and start the bars if `stream` is a terminal."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._stream = stream
        self._is_live = stream.isatty()
        self.bars = Progress(
            TextColumn("▸ {task.description}", style="cyan", markup=False),
            BarColumn(20),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[metric]}  {task.fields[note]}", markup=False),
            console=Console(file=getattr(stream, "unguarded", stream)),
            disable=not self._is_live,
        )
        self.bars.start()
        self._tasks: dict[str, Task] = {}
        self._tenths: dict[str, int] = {}
        self._lock = threading.Lock()

    def start(self, step: str) -> None:
        """Show that a step is running."""
        if self._is_live:
            self._renew(step, None)
        else:
            self.tell(step, "started")

    def progress(self, step: str, done: float, total: float, note: str) -> None:
        """Move a step's bar, or print a line after each tenth, and for a phase of unknown length."""
        with self._lock:
            task = self._tasks.get(step)
            if task is None or task.total != (total or None) or done < task.completed:
                task = self._renew(step, total or None)  # a new phase, which counts again
            self.bars.update(task.id, completed=done, note=printable(note))
            if not self._is_live and (text := self._describe_progress(step, task)):
                self.tell(step, text)

    def log(self, step: str, metric: str) -> None:
        """Show a metric's latest value next to a step's bar."""
        if step in self._tasks:
            self.bars.update(self._tasks[step].id, metric=printable(metric))

    def end(self, step: str, text: str) -> None:
        """Remove a step's bar, and tell how it ended."""
        task = self._tasks.pop(step, None)
        if task is not None:
            self.bars.remove_task(task.id)
            self.bars.refresh()  # or the line would show it once more
        self.tell(step, text)

    def tell(self, step: str, text: str) -> None:
        """Print a line about a step."""
        line = f"{printable(step)}: {printable(text)}"
        if self._is_live:
            self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def _renew(self, step: str, total: float | None) -> Task:
        old = self._tasks.get(step)
        if old is not None:
            self.bars.remove_task(old.id)
        metric = old.fields["metric"] if old is not None else ""
        identifier = self.bars.add_task(printable(step), total=total, metric=metric, note="")
        self._tasks[step] = next(task for task in self.bars.tasks if task.id == identifier)
        self._tenths[step] = 0
        return self._tasks[step]

    def _describe_progress(self, step: str, task: Task) -> str:
        note = str(task.fields["note"])
        if task.total is None:
            return note
        tenth = int(task.percentage / 100 * _PLAIN_LINES + 1e-9)
        if tenth == self._tenths[step]:
            return ""
        self._tenths[step] = tenth
        left = task.time_remaining
        parts = [f"{task.percentage:.0f}%", f"{duration(left)} left" if left is not None else ""]
        return ", ".join(filter(None, [*parts, str(task.fields["metric"]), note]))


# The runs of this process, by their OUT; a run is removed when it ends.
_runs: dict[Path, RunView] = {}


@hookimpl
def run_started(out: Path, quiet: bool) -> None:
    """Open a view of the run."""
    if not quiet:
        _runs[out] = RunView(sys.stdout)


@hookimpl
def step_started(out: Path, step: str) -> None:
    """Show the step as running."""
    if out in _runs:
        _runs[out].start(step)


@hookimpl
def step_progressed(out: Path, step: str, done: float, total: float, note: str) -> None:
    """Move the step's bar."""
    if out in _runs:
        _runs[out].progress(step, done, total, note)


@hookimpl
def metric_logged(out: Path, step: str, name: str, value: float) -> None:
    """Show the metric's latest value next to the bar."""
    if out in _runs:
        _runs[out].log(step, f"{name} {value:.4g}")


@hookimpl
def step_skipped(out: Path, step: str, folder: Path) -> None:
    """Show that the step is skipped because its result exists."""
    if out in _runs:
        _runs[out].end(step, f"done before, stands in {folder}")


@hookimpl
def step_warned(out: Path, step: str, message: str) -> None:
    """Show a warning."""
    if out in _runs:
        _runs[out].tell(step, f"warning: {message}")


@hookimpl
def step_failed(out: Path, step: str, error: BaseException) -> None:
    """Show that the step failed, and why."""
    if out in _runs:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        _runs[out].end(step, f"failed: {first_line}")


@hookimpl
def step_finished(out: Path, step: str, folder: Path, seconds: float) -> None:
    """Show that the step is done, and the folder of its result."""
    if out in _runs:
        _runs[out].end(step, f"done in {duration(seconds)}, {folder}")


@hookimpl
def run_finished(out: Path) -> None:
    """Close the view and forget the run."""
    if out in _runs:
        _runs.pop(out).bars.stop()


def duration(seconds: float) -> str:
    """Return a time in seconds as text: `8.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, left_over = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_over} s"
    return f"{minutes // 60} h {minutes % 60} min"
