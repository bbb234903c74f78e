"""Reasons for which a test may be skipped: what a machine lacks, never a package that could be installed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# In the environment, makes any other reason fail the run; continuous integration sets it.
STRICT = "EMBERGE_TESTS_SKIP_NOTHING_ELSE"
ALLOWED = (
    # A GPU, or none.
    r"needs (a|two) CUDA devices?",
    r"this machine has a GPU",
    # Data sets that are no part of the project.
    r"needs .* in \.\./shared/data",
    # Another system, file system or kernel.
    r"(finds processes in|reads) /proc",
    r"needs Linux",
    r"needs a C compiler",
    r"needs compiled kernels: (plain torch, as EMBERGE_KERNELS=never|.*this processor has no)",
    r"only glibc keeps freed memory",
    r"this file system keeps files in memory",
    r"the file system of the temporary folder takes no direct writes",
)


def reason_of(longrepr: object) -> str:
    """The reason in the report of a skipped test or file."""
    said = longrepr[2] if isinstance(longrepr, tuple) else longrepr
    return str(said).removeprefix("Skipped: ")


def not_allowed(reasons: Iterable[str]) -> Counter[str]:
    """Reasons that are none of these, with the number of tests each."""
    return Counter(r for r in reasons if not any(re.match(allowed, r) for allowed in ALLOWED))
