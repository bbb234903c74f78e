"""Mutants that no test can find, as they change nothing that may be relied on; each with its reason.

A mutant is known by its file's name and the changed lines, so that it is still known after a move.
"""

from __future__ import annotations

from tests.support.mutants.plant import Mutant

# file, changed line, line of the mutant, reason
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = ()

_KNOWN = {(file, before, after) for file, before, after, _ in EQUIVALENT}


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether the mutant was looked at and does what the original does."""
    return (mutant.path.name, mutant.before, mutant.after) in _KNOWN
