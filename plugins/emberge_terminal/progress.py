"""Progress in a terminal: steps with their states; a running one with speed, time left, loss."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from emberge import hookimpl
from emberge.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_MARKS = {"waiting": "·", "running": "▸", "done": "✓", "skipped": "✓", "failed": "✗"}
_COLOURS = {"running": "cyan", "done": "green", "skipped": "green", "failed": "red"}
_PLAIN_LINES = 10  # lines of progress for a step
_KEPT_ROWS = 4  # lines of a terminal that steps leave free


@dataclass
class StepView:
    """The state of one step on the terminal."""

    name: str
    state: str = "waiting"
    note: str = ""
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    metric: str = ""
    start_time: float = 0.0
    first_progress: tuple[float, float] | None = None
    """(time, units done) at the first progress in this run; a continued step starts above 0 units."""
    seconds: float | None = None

    def progressed(self, now: float, done: float, total: float) -> None:
        """Record the step's progress: units done, their total, and the time."""
        if self.first_progress is None or done < self.done:  # a new phase starts to count again
            self.first_progress = (now, done)
        self.done, self.total = done, total

    def rate(self, now: float) -> float | None:
        """Return units per second since the first progress; None before the second."""
        if (
            self.first_progress is None
            or now <= self.first_progress[0]
            or self.done <= self.first_progress[1]
        ):
            return None
        return (self.done - self.first_progress[1]) / (now - self.first_progress[0])

    def left(self, now: float) -> float | None:
        """Return the seconds left at the current rate."""
        rate = self.rate(now)
        return None if rate is None else max(0.0, self.total - self.done) / rate

    @property
    def share(self) -> float:
        """Share of the units that is done, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


@dataclass
class RunView:
    """View of one run: its steps in order, and the function that draws them."""

    out: Path
    steps: dict[str, StepView]
    draw: Callable[[StepView, str], None]
    """Function that is called with the changed step and the event's short name."""
    close: Callable[[], None]
    """Function that is called when the run has ended."""
    lock: threading.Lock = field(default_factory=threading.Lock)


# The runs of this process, by their OUT; a run is removed when it ends.
_runs: dict[Path, RunView] = {}


@hookimpl
def run_started(out: Path, steps: list[str], quiet: bool) -> None:
    """Open a view of the run."""
    if not quiet:
        _runs[out] = open_view(out, steps, sys.stdout)


@hookimpl
def step_started(out: Path, step: str) -> None:
    """Show the step as running."""
    _change_view(out, step, "started", state="running", start_time=time.monotonic())


@hookimpl
def step_progressed(out: Path, step: str, done: float, total: float, unit: str, note: str) -> None:
    """Move the step's bar."""
    _change_view(out, step, "progress", far=(done, total), unit=unit, note=note)


@hookimpl
def metric_logged(out: Path, step: str, name: str, value: float) -> None:
    """Show the metric's latest value next to the bar."""
    _change_view(out, step, "metric", metric=f"{name} {value:.4g}")


@hookimpl
def step_skipped(out: Path, step: str, folder: Path) -> None:
    """Show that the step is skipped because its result exists."""
    _change_view(out, step, "skipped", state="skipped", note=f"stands in {folder}")


@hookimpl
def step_warned(out: Path, step: str, message: str) -> None:
    """Show a warning."""
    _change_view(out, step, "warned", note=message)


@hookimpl
def step_failed(out: Path, step: str, error: BaseException) -> None:
    """Show that the step failed, and why."""
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    _change_view(out, step, "failed", state="failed", note=first_line)


@hookimpl
def step_finished(out: Path, step: str, folder: Path, seconds: float) -> None:
    """Show that the step is done, and the folder of its result."""
    _change_view(out, step, "finished", state="done", seconds=seconds, note=str(folder))


@hookimpl
def run_finished(out: Path) -> None:
    """Close the view and forget the run."""
    view = _runs.pop(out, None)
    if view is not None:
        view.close()


def open_view(out: Path, steps: Sequence[str], stream: TextIO) -> RunView:
    """Open the view of a run and return it.

    It is a live table in a terminal, and plain lines in a notebook and elsewhere.
    """
    views = {name: StepView(printable(name)) for name in steps}
    if stream.isatty():
        return _open_live_view(out, views, getattr(stream, "unguarded", stream))
    return RunView(out, views, PlainLines(stream), lambda: None)


def _change_view(out: Path, step: str, event: str, **changes: Any) -> None:
    run = _runs.get(out)
    if run is None:
        return
    with run.lock:
        view = run.steps[step]
        far = changes.pop("far", None)
        if far is not None:
            view.progressed(time.monotonic(), *far)
        for name, value in changes.items():
            setattr(view, name, printable(value) if isinstance(value, str) else value)
        run.draw(view, event)


class PlainLines:
    """Printer of plain lines: at start and end of a step, after each tenth, for a phase of unknown length."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: dict[str, int] = {}

    def __call__(self, view: StepView, event: str) -> None:
        text = self._describe_event(view, event)
        if text:
            print(f"{view.name}: {text}", file=self._stream, flush=True)

    def _describe_event(self, view: StepView, event: str) -> str:
        if event == "progress":
            return self._describe_progress(view)
        if event == "finished":
            return f"done in {duration(view.seconds or 0)}, {view.note}"
        texts = {
            "started": "started",
            "skipped": f"done before, {view.note}",
            "failed": f"failed: {view.note}",
            "warned": f"warning: {view.note}",
        }
        return texts.get(event, "")

    def _describe_progress(self, view: StepView) -> str:
        if not view.total:
            self._shown[view.name] = 0
            return view.note  # a phase of unknown length
        tenth = int(view.share * _PLAIN_LINES + 1e-9)
        if tenth == self._shown.get(view.name, 0):
            return ""
        self._shown[view.name] = tenth
        if tenth == 0:
            return ""  # a new phase
        time_left = view.left(time.monotonic())
        eta = f", {duration(time_left)} left" if time_left is not None else ""
        details = ", ".join(text for text in (view.metric, view.note) if text)
        return f"{view.share:.0%}{eta}{', ' + details if details else ''}"


def _open_live_view(out: Path, views: dict[str, StepView], stream: TextIO) -> RunView:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    live = Live(
        get_renderable=lambda: table(list(views.values()), console.height, time.monotonic()),
        console=console,
        refresh_per_second=5,
        redirect_stdout=True,
        redirect_stderr=True,
    )
    live.start()
    return RunView(out, views, _Announcer(live), live.stop)


class _Announcer:
    """Printer of the lines that remain above a live table."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, view: StepView, event: str) -> None:
        if event == "warned":
            self._live.console.print(f"{view.name}: warning: {view.note}", markup=False)


def table(views: Sequence[StepView], height: int, now: float) -> RenderableType:
    """Build the table of all steps; with too few rows, of the running steps and their neighbours."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    shown_views, hidden_count = _select_shown(views, max(3, height - _KEPT_ROWS))
    grid = Table.grid(padding=(0, 1))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    grid.add_column(width=20)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    for view in shown_views:
        style = _COLOURS.get(view.state, "dim")
        bar = ProgressBar(total=1.0, completed=view.share, width=20)
        grid.add_row(
            Text(_MARKS[view.state], style),
            Text(view.name, style),
            bar if view.state == "running" and view.total else Text(""),
            Text(_describe_state(view, now)),
        )
    if hidden_count:
        grid.add_row("", Text(f"and {hidden_count} more", "dim"), "", "")
    running = sum(view.state == "running" for view in views)
    if running > 1:
        done = sum(view.state in ("done", "skipped") for view in views)
        grid.add_row("", "", "", Text(f"{running} running, {done} of {len(views)} done", "dim"))
    return grid


def _select_shown(views: Sequence[StepView], rows: int) -> tuple[Sequence[StepView], int]:
    """Return as many steps as fit into the rows, running ones first, and the number of omitted steps."""
    if len(views) <= rows:
        return views, 0
    running = [i for i, view in enumerate(views) if view.state == "running"]
    middle = running[0] if running else len(views) - 1
    nearest_first = sorted(range(len(views)), key=lambda i: (i not in running, abs(i - middle)))
    return [views[i] for i in sorted(nearest_first[:rows])], len(views) - rows


def _describe_state(view: StepView, now: float) -> str:
    if view.state == "done":
        return f"{duration(view.seconds or 0)}  {view.note}"
    if view.state != "running":
        return view.note
    time_left, rate = view.left(now), view.rate(now)
    parts = [
        f"{view.share:.0%}" if view.total else duration(now - view.start_time),
        f"{duration(time_left)} left" if time_left is not None else "",
        f"{rate:.3g} {view.unit}/s" if rate is not None and view.unit else "",
        view.metric,
        view.note,
    ]
    return "  ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """Return a time in seconds as text: `8.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, left_over = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left_over} s"
    return f"{minutes // 60} h {minutes % 60} min"
