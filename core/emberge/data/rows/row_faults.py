"""Faults of rows of a file: one problem for each, with the rows that have it."""

from __future__ import annotations

import re

from emberge.errors import Problem

_SHOWN_FAULTS = 20
_SHOWN_ROWS = 5
# What differs between rows with one fault: quoted values after the first quoted name, the row's columns,
# and numbers.
_NAME = re.compile(r"(.*?'[^'\[]*)(?:\[\d+\])?'(.*)", re.DOTALL)
_VALUES = re.compile(r"'[^']*'|\(columns: [^)]*\)|-?\d[\d.e+-]*|\b(?:inf|nan)\b")


class RowFaults:
    """Faults of rows that cannot be used. `count` is the number of rows, and `read` of all rows read."""

    def __init__(self) -> None:
        self.count = self.read = 0
        self._messages: dict[str, str] = {}
        self._rows: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}

    def add(self, number: int, message: str) -> None:
        """Add the fault of a row, 0 for the whole file; faults that differ in values alone are one."""
        fault = _drop_values(message)
        self.count += 1
        if fault not in self._messages and len(self._messages) >= _SHOWN_FAULTS:
            return
        self._messages.setdefault(fault, message)
        self._counts[fault] = self._counts.get(fault, 0) + 1
        rows = self._rows.setdefault(fault, [])
        if len(rows) < _SHOWN_ROWS:
            rows.append(number)

    def problems(self, place: str) -> list[Problem]:
        """Return one problem for each of the first twenty faults, at its first row, then a count."""
        problems = [
            Problem(
                f"{message}{self._list_rows(fault)}",
                f"{place}:{self._rows[fault][0]}" if self._rows[fault][0] else place,
            )
            for fault, message in self._messages.items()
        ]
        if omitted := self.count - sum(self._counts.values()):
            problems.append(Problem(f"{omitted} more rows cannot be used", place))
        return problems

    def _list_rows(self, fault: str) -> str:
        count, rows = self._counts[fault], self._rows[fault]
        if count == 1:
            return ""
        more = ", …" if count > len(rows) else ""
        read = f" of the {self.read:,} that were read" if self.read else ""
        return f" ({count:,} rows{read}: {', '.join(map(str, rows))}{more})"


def _drop_values(message: str) -> str:
    match = _NAME.fullmatch(message)
    start, rest = match.groups() if match else ("", message)
    return f"{start}{_VALUES.sub('', rest)}"
