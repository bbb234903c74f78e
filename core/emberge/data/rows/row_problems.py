"""Problems of rows of a file: one for all rows that have it, with their numbers."""

from __future__ import annotations

import re

from emberge.errors import Problem

_SHOWN_PROBLEMS = 20
_SHOWN_ROWS = 5
# What differs between rows with one problem: quoted values after the first quoted name, the row's columns,
# and numbers.
_NAME = re.compile(r"(.*?'[^'\[]*)(?:\[\d+\])?'(.*)", re.DOTALL)
_VALUES = re.compile(r"'[^']*'|\(columns: [^)]*\)|-?\d[\d.e+-]*|\b(?:inf|nan)\b")


class RowProblems:
    """Problems of rows that cannot be used. `count` is the number of rows, and `read` of all rows read."""

    def __init__(self) -> None:
        self.count = self.read = 0
        self._messages: dict[str, str] = {}
        self._rows: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}

    def add(self, number: int, message: str) -> None:
        """Add the problem of a row, 0 for the whole file; messages that differ in values alone are one."""
        key = _drop_values(message)
        self.count += 1
        if key not in self._messages and len(self._messages) >= _SHOWN_PROBLEMS:
            return
        self._messages.setdefault(key, message)
        self._counts[key] = self._counts.get(key, 0) + 1
        rows = self._rows.setdefault(key, [])
        if len(rows) < _SHOWN_ROWS:
            rows.append(number)

    def list_problems(self, place: str) -> list[Problem]:
        """Return the first twenty problems, each at its first row, and the number of further rows."""
        problems = [
            Problem(
                f"{message}{self._list_rows(key)}",
                f"{place}:{self._rows[key][0]}" if self._rows[key][0] else place,
            )
            for key, message in self._messages.items()
        ]
        if omitted := self.count - sum(self._counts.values()):
            problems.append(Problem(f"{omitted} more rows cannot be used", place))
        return problems

    def _list_rows(self, key: str) -> str:
        count, rows = self._counts[key], self._rows[key]
        if count == 1:
            return ""
        more = ", …" if count > len(rows) else ""
        read = f" of the {self.read:,} that were read" if self.read else ""
        return f" ({count:,} rows{read}: {', '.join(map(str, rows))}{more})"


def _drop_values(message: str) -> str:
    match = _NAME.fullmatch(message)
    start, rest = match.groups() if match else ("", message)
    return f"{start}{_VALUES.sub('', rest)}"
