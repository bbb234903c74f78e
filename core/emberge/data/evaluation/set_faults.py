"""Faults of an evaluation set, which are collected while it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from emberge.data.rows.row_faults import RowFaults
from emberge.errors import DataError

_PLACED = re.compile(r"(.+?)(?::(\d+))?: (.*)", re.DOTALL)


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
