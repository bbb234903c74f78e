"""Text on its way to a terminal: whatever of it steers terminals becomes escapes, in one place a channel.

Names of files, columns and rows come from strangers. Verbs, ours and plugins', print them with `print`; so
standard output itself is guarded while a verb runs. Errors go to standard error by `print_error`, for there
other libraries draw their bars.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from emberge.wording import printable, printable_lines


class _GuardedStream:
    """A text stream that writes control characters as escapes; `unguarded` is the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        """Write text of several lines."""
        self.unguarded.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, which have their ends already."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Guard standard output inside the block.

    A listener that draws with escapes of its own takes `sys.stdout.unguarded`, and guards its texts itself.
    """
    before = sys.stdout
    sys.stdout = cast(TextIO, _GuardedStream(before))
    try:
        yield
    finally:
        sys.stdout = before


def print_error(label: str, line: object) -> None:
    """Print one line to standard error behind a label: `error: …`."""
    print(f"{label}: {printable(line)}", file=sys.stderr)
