"""Faults of rows of a file, and of the files of a set: one problem for each, with the rows that have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from emberge.errors import DataError, Problem

_SHOWN_FAULTS = 20
_SHOWN_ROWS = 5
# What differs between rows with one fault: quoted values after the first quoted name, the row's columns,
# and numbers.
_NAME = re.compile(r"(.*?'[^'\[]*)(?:\[\d+\])?'(.*)", re.DOTALL)
_PLACED = re.compile(r"(.+?)(?::(\d+))?: (.*)", re.DOTALL)
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


class SetFaults:
    """Messages with `file:line`, one for each fault of a file's rows; the first twenty of a file are shown.

    `hidden` is True if a row could not be read, so that not every id is known.
    """

    def __init__(self) -> None:
        self._faults_by_file: dict[str, RowFaults] = {}
        self.hidden = False

    def add(self, message: str, *, hides: bool = False) -> None:
        """Add a fault, which `hides` the id of a row."""
        match = _PLACED.fullmatch(message)
        file, line, text = match.groups() if match else ("", None, message)
        self._faults_by_file.setdefault(file, RowFaults()).add(int(line or 0), text)
        self.hidden |= hides

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Add the faults that a DataError of the block names, and go on."""
        try:
            yield
        except DataError as error:
            for message in str(error).splitlines():
                self.add(message)

    def require_none(self) -> None:
        """Raise the faults that were added, and forget them.

        Raises:
            DataError: if there is one; has a line for each, and a count of those that are not shown.
        """
        faults_by_file, self._faults_by_file = self._faults_by_file, {}
        problems = (p for file, faults in faults_by_file.items() for p in faults.problems(file))
        if text := "\n".join(map(str, problems)):
            raise DataError(text)
