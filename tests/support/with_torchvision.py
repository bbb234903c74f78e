"""A process that has torchvision, which sentence-transformers demands for images, and that this one may lack.

No index has a build of it for a torch without CUDA. The usual build loads beside one, if the schemas of two
operators, which only its binary part has, are defined first; its transforms of images need neither. So that
no other test meets such a build, `make` installs it into `beside` of the virtual environment.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

_BESIDE = Path(sys.prefix) / "beside"


def run_with_torchvision(module: str, *arguments: str | Path) -> str:
    """Run a module of tests, which calls `define_operators` first, and return its output; skip without."""
    if importlib.util.find_spec("torchvision") is None and not (_BESIDE / "torchvision").is_dir():
        pytest.skip(
            f"needs torchvision: pip install --no-deps --target {_BESIDE} torchvision==0.28.0"
        )
    path = os.pathsep.join([str(ROOT), *sys.path, str(_BESIDE)])
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def define_operators() -> object:
    """Define the two operators that torchvision looks for while it is imported; keep what is returned."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import torchvision
    except RuntimeError:  # a whole torchvision, whose binary part defines them
        library._destroy()
        import torchvision  # noqa: F401
    return library
