"""Exceptions with messages for users: the problem, its place, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


class EmbergeError(Exception):
    """A failure that its message explains; commands print it without a traceback."""

    exit_code = 1


class RecipeError(EmbergeError):
    """A mistake in a recipe or a command line; `problems` lists all mistakes."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PluginError(EmbergeError):
    """A plugin that cannot be imported, clashes with another, or breaks a contract."""

    exit_code = 2


class CheckpointError(EmbergeError):
    """A checkpoint that is missing, is damaged, or does not fit the others."""

    exit_code = 2


class UnwrittenError(CheckpointError):
    """A write that failed or has no room; the inputs may be sound."""

    exit_code = 1


class UnsoundFileError(CheckpointError):
    """An untrusted file that is not regular, too large, or a link out of its folder."""


class OutInUseError(EmbergeError):
    """A folder OUT in which another run works."""

    exit_code = 2


class DataError(EmbergeError):
    """A data file that is missing, is damaged, or has a row that cannot be used."""

    exit_code = 2


class AccessError(CheckpointError, DataError):
    """A model or dataset that is gated, or private: its terms are to be accepted, or a token is needed."""


class RequirementError(EmbergeError):
    """A `require` of the recipe that was not met; the result is complete and kept."""

    exit_code = 3


class TrainingError(EmbergeError):
    """A training that failed by its data or settings, at step `step`, counted from 1."""

    def __init__(self, message: str, step: int = 0) -> None:
        super().__init__(message)
        self.step = step


# Errors that remain when the command is repeated: a file is missing, or not readable or writable.
_PERMANENT_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


Severity = Literal["error", "warning", "unseen"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, its place (`file:line` or a tensor's name), and how bad it is.

    An `error` stops a run before it starts; a `warning` does not. `unseen` says that this machine could not
    examine an input, such as a hub id without a network.
    """

    message: str
    where: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def is_temporary(error: BaseException) -> bool:
    """Return whether an error comes from a disk or a network, so that the same command may succeed later."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, _PERMANENT_ERRORS)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest known word; "" if no word is close."""
    closest = find_closest_word(word, known)
    return f"; did you mean '{closest}'?" if closest is not None else ""


def find_closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelt one most likely means; None if no word is close."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)
