"""Faults and oddities of an evaluation set, which are collected while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from emberge.errors import DataError

_SHOWN = 20


class SetFaults:
    """Messages with `file:line`; the first twenty are shown.

    `hidden` is True if a row could not be read, so that not every id is known. `oddities` are messages on
    what can be scored and is hardly meant.
    """

    def __init__(self) -> None:
        self._messages: list[str] = []
        self.oddities: list[str] = []
        self.hidden = False

    def add(self, message: str, *, hides: bool = False) -> None:
        """Add a fault, which `hides` the id of a row."""
        self._messages.append(message)
        self.hidden |= hides

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Add the faults that a DataError of the block names, and go on."""
        try:
            yield
        except DataError as error:
            self._messages += str(error).splitlines()

    def require_none(self) -> None:
        """Raise the faults that were added, and forget them.

        Raises:
            DataError: if there is one; has a line for each, and a count of those that are not shown.
        """
        messages, self._messages = self._messages, []
        if omitted := messages[_SHOWN:]:
            place = omitted[0].partition(":")[0]
            messages[_SHOWN:] = [f"{place}: {len(omitted)} more faults of the set are not shown"]
        if messages:
            raise DataError("\n".join(messages))
