"""Everything emberge raises on purpose, and how it says what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CheckpointError",
    "DataError",
    "EmbergeError",
    "PluginError",
    "Problem",
    "RecipeError",
    "RequirementError",
    "suggest",
]


class EmbergeError(Exception):
    """The work failed for a reason that the message explains; printed without a traceback."""

    exit_code = 1


class RecipeError(EmbergeError):
    """A recipe or a command line is wrong. `problems` lists every fault that was found."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PluginError(EmbergeError):
    """A plugin cannot be imported, clashes with another, or breaks a contract."""

    exit_code = 2


class CheckpointError(EmbergeError):
    """A checkpoint is missing, damaged, or does not fit the others."""

    exit_code = 2


class DataError(EmbergeError):
    """A data file is missing, damaged, or holds a row that cannot be used."""

    exit_code = 2


class RequirementError(EmbergeError):
    """The work was done, but a `require` of the recipe was not met."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where it stands (`file:line` or a tensor's name), and how bad it is.

    An `error` stops a run before it starts; a `warning` does not; `unseen` is something that could
    not be looked at from here, such as a hub id without a network.
    """

    message: str
    where: str = ""
    severity: Literal["error", "warning", "unseen"] = "error"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
