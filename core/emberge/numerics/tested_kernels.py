"""The compiled kernels, once they were compared with torch."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emberge.interpreter import python_command, safe_paths
from emberge.numerics.compiling import can_keep, kept_in
from emberge.numerics.self_test import first_difference

__all__ = ["compile_all", "kernels"]


@functools.cache
def kernels() -> Any | None:
    """Return the module of kernels, compiled and compared with torch; None without numba, or if they differ.

    They are compared once for each version and processor, where a mark of it can be kept. A difference, and
    a numba that cannot be imported, are warned about.
    """
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from emberge.numerics import row_kernels

        mark = _mark() if can_keep() else None
        if mark is None:
            _warn(
                f"{kept_in()} cannot be written by us alone, so kernels are compiled for this run alone"
            )
        elif mark.exists():
            return row_kernels
        else:
            _compile_apart()
        different = first_difference(row_kernels)
    except Exception as error:  # whatever a broken compiler raises
        _warn(f"numba does not work here ({error}); merging by plain torch, which is slower")
        return None
    if different:
        _warn(
            f"the compiled kernel '{different}' gives other bytes than torch on this machine; "
            "merging by plain torch, which is slower"
        )
        return None
    if mark is not None:
        mark.touch()
    return row_kernels


def _compile_apart() -> None:
    """Compile and keep the kernels in a process of its own, as a compiler leaves 100 MB of memory behind.

    If that fails, they are compiled in this one, which shows why.
    """
    paths = {"PYTHONPATH": os.pathsep.join(safe_paths())}
    code = f"import {__name__} as tested; tested.compile_all()"
    subprocess.run(
        python_command("-c", code), env={**os.environ, **paths}, check=False, capture_output=True
    )


def compile_all() -> None:
    """Compile and keep every kernel."""
    from emberge.numerics import row_kernels

    first_difference(row_kernels)


def _mark() -> Path:
    """Return the file whose presence means that kernels like these agreed with torch on this processor."""
    import llvmlite.binding
    import numba

    source = Path(__file__).with_name("row_kernels.py").read_bytes()
    parts = (
        sys.version,
        torch.__version__,
        np.__version__,
        numba.__version__,
        llvmlite.binding.get_host_cpu_name(),
    )
    version = hashlib.blake2b(source + "\0".join(parts).encode(), digest_size=8).hexdigest()
    return kept_in() / f"tested-{version}"


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
