"""The compiled kernels, for tests that need them."""

from __future__ import annotations

import shutil

import pytest
from emberge.numerics import kernels


def require_kernels() -> None:
    """Skip the test or the whole file if there are no compiled kernels, with the reason."""
    if kernels() is not None:
        return
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler, for the compiled kernels", allow_module_level=True)
    pytest.skip(
        "the kernels are not built: python core/emberge/numerics/native/build.py",
        allow_module_level=True,
    )
