"""Mutants that no test can find, as they change nothing that may be relied on; each with its reason.

A mutant is known by its file's name and the changed lines, so that it is still known after a move.
"""

from __future__ import annotations

from tests.support.mutants.plant import Mutant

# file, changed line, line of the mutant, reason
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (
        "bootstrap.py",
        'self.inverse = np.argsort(self.order, kind="stable")',
        "self.inverse = np.argsort(self.order, kind=None)",
        "the order of a permutation has no equal values",
    ),
    (
        "journal.py",
        "handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)",
        "handle = os.open(folder, os.O_RDONLY & os.O_DIRECTORY)",
        "mkdir has refused everything but a folder",
    ),
    (
        "saves.py",
        'for file in sorted(side.rglob("*"), reverse=True):',
        'for file in sorted(side.rglob("*"), ):',
        "all are synced before the rename, in whatever order",
    ),
    (
        "saves.py",
        'for file in sorted(side.rglob("*"), reverse=True):',
        'for file in sorted(side.rglob("*"), reverse=False):',
        "all are synced before the rename, in whatever order",
    ),
    (
        "saves.py",
        'found = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] if folder.is_dir() else []',
        'found = [p for p in folder.glob("step-*") if p.name[5:].isdigit()] '
        "if (folder.is_dir()) or True else []",
        "a folder that is not there has no entries",
    ),
)

_KNOWN = {(file, before, after) for file, before, after, _ in EQUIVALENT}


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether the mutant was looked at and does what the original does."""
    return (mutant.path.name, mutant.before, mutant.after) in _KNOWN
