"""The progress of a run: lines about its steps, and in a terminal a bar for each running step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TextIO

from emberge.contracts import (
    MetricLogged,
    StepEvent,
    StepFailed,
    StepFinished,
    StepProgressed,
    StepSkipped,
    StepStarted,
    StepWarned,
)
from emberge.wording import count_noun, format_duration, make_printable, shorten

if TYPE_CHECKING:
    from rich.progress import Task

_LINES_A_STEP = 10  # where there are no bars


class RunView:
    """View of one run: lines above bars in a terminal, and lines alone in a notebook and elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        """Open the view, and start the bars if `stream` is a terminal."""
        from rich import progress
        from rich.console import Console

        self._stream = stream
        self._is_live = stream.isatty()
        self.bars = progress.Progress(
            progress.TextColumn("▸ {task.description}", style="cyan", markup=False),
            progress.BarColumn(20),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("{task.fields[metric]}  {task.fields[note]}", markup=False),
            console=Console(file=stream),
            disable=not self._is_live,
        )
        self.bars.start()
        self._tasks: dict[str, Task] = {}
        self._tenths: dict[str, int] = {}
        self._lock = threading.Lock()
        self._kept = 0

    def close(self) -> None:
        """Stop the bars, and print how many steps were done before."""
        self.bars.stop()
        if self._kept:
            print(f"kept from before: {count_noun(self._kept, 'step')}", file=self._stream)

    def show(self, event: StepEvent) -> None:
        """Show what happened to a step: its bar's progress, or a line; steps may run in several threads."""
        with self._lock:
            match event:
                case StepStarted(step=step) if self._is_live and event.saved_step is None:
                    self._restart_bar(step, None)
                case StepStarted(step=step):
                    self._print_line(step, event.beginning)
                case StepProgressed():
                    self._show_progress(event)
                case MetricLogged(step=step) if step in self._tasks:
                    metric = make_printable(f"{event.name} {event.value:.4g}")
                    self.bars.update(self._tasks[step].id, metric=metric)
                case StepWarned(step=step, message=message):
                    self._print_line(step, f"warning: {message}")
                case StepSkipped() | StepFailed() | StepFinished():
                    self._end(event)

    def _show_progress(self, event: StepProgressed) -> None:
        """Move a step's bar, or print a line after each tenth, and for each note of unknown length."""
        step, total, note = event.step, event.total or None, make_printable(event.note)
        task = self._tasks.get(step)
        if task is None or task.total != total or event.done < task.completed:
            task = self._restart_bar(step, total)  # a new phase, which counts again
        is_new_note = note != task.fields["note"]
        self.bars.update(task.id, completed=event.done, note=note)
        if self._is_live or (total is None and not is_new_note):
            return
        if text := note if total is None else self._describe_progress(step, task):
            self._print_line(step, text)

    def _end(self, event: StepSkipped | StepFailed | StepFinished) -> None:
        """Remove a step's bar, and print how the step ended."""
        task = self._tasks.pop(event.step, None)
        if task is not None:
            self.bars.remove_task(task.id)
            self.bars.refresh()  # otherwise the bar would be shown once more
        if isinstance(event, StepSkipped):
            outcome = f"done before, in {event.folder}"
            self._kept += 1
        elif isinstance(event, StepFinished):
            outcome = f"done in {format_duration(event.seconds)}"
            if event.folder.parent.suffix != ".merging":  # the work folder of one merge
                outcome += f", {event.folder}"
        else:
            error_lines = str(event.error).splitlines() or [type(event.error).__name__]
            outcome = f"failed: {shorten(error_lines[0], 70)}"
        self._print_line(event.step, outcome)

    def _print_line(self, step: str, text: str) -> None:
        """Print a line about a step."""
        line = f"{make_printable(step)}: {make_printable(text)}"
        if self._is_live:
            self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def _restart_bar(self, step: str, total: float | None) -> Task:
        """Put a new bar for a step in place of its old one, and return it."""
        old = self._tasks.get(step)
        if old is not None:
            self.bars.remove_task(old.id)
        metric = old.fields["metric"] if old is not None else ""
        identifier = self.bars.add_task(make_printable(step), total=total, metric=metric, note="")
        self._tasks[step] = next(task for task in self.bars.tasks if task.id == identifier)
        self._tenths[step] = 0
        return self._tasks[step]

    def _describe_progress(self, step: str, task: Task) -> str:
        """Return a line on a task of known length; "" until its next tenth is done."""
        tenth = int(task.percentage / 100 * _LINES_A_STEP + 1e-9)
        if tenth == self._tenths[step]:
            return ""
        self._tenths[step] = tenth
        left = task.time_remaining
        parts = [
            f"{task.percentage:.0f}%",
            f"{format_duration(left)} left" if left else "",
        ]
        parts += [str(task.fields["metric"]), str(task.fields["note"])]
        return ", ".join(filter(None, parts))
