"""The compiled kernels, for tests that need them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from emberge.numerics import (
    DeltaProgram,
    RowsPlace,
    StoredRows,
    allows_kernels,
    describe_kernels,
    load_kernels,
)
from torch import Tensor


def require_kernels() -> None:
    """Skip the test or the whole file if there are no compiled kernels, with the reason."""
    if load_kernels() is None:
        pytest.skip(_reason(), allow_module_level=True)


def store(rows: Sequence[Tensor]) -> DeltaProgram:
    """Return rows of models and, last, of a base, as kernels read them from memory."""
    library, size, step = load_kernels(), rows[0].numel(), rows[0].nbytes
    assert library is not None
    memory = torch.stack(list(rows)).view(-1).view(torch.uint8).numpy()
    dtype = str(rows[0].dtype).removeprefix("torch.")
    *models, base = (RowsPlace(dtype, number * step, number) for number in range(len(rows)))
    return DeltaProgram(StoredRows.of(memory, models, base, (size,), library, is_checked=True))


def _reason() -> str:
    if allows_kernels() and not _compiles():
        return "needs a C compiler, for the compiled kernels"
    line = describe_kernels()
    return f"needs compiled kernels: {line}"


@cache
def _compiles() -> bool:
    """Return whether the compiler of the kernels' build takes an empty program."""
    words = shlex.split(os.environ.get("CC", ""))
    compiler = words or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    try:
        done = subprocess.run(
            [*compiler, "-x", "c", "-fsyntax-only", os.devnull], capture_output=True, check=False
        )
    except (OSError, IndexError):
        return False
    return not done.returncode
