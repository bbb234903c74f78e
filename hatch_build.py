"""Hatch's hook for wheels and editable installations: compile the kernels, if there is a C compiler.

Without one, or with EMBERGE_BUILD_KERNELS=never, the wheel is for any platform, and merges by plain torch.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

SWITCH = "EMBERGE_BUILD_KERNELS"
NATIVE = Path("core", "emberge", "numerics", "native")


class KernelHook(BuildHookInterface[Any]):
    """The hook that adds the compiled kernels and the tag of their platform to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels beside their source, for `version` standard or editable."""
        if os.environ.get(SWITCH) == "never":
            self.app.display_warning(f"no kernels are built, as {SWITCH}=never asks for")
            return
        native = runpy.run_path(str(Path(self.root, NATIVE, "build.py")))
        try:
            library = native["build"]()
        except native["BuildError"] as error:
            self.app.display_warning(f"no kernels are built: {error}")
            return
        build_data["artifacts"].append((NATIVE / library.name).as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """Return the tag of this platform, on Linux the plain one, as the C library is the builder's."""
    tags = [*platform_tags()]
    plain = [tag for tag in tags if sys.platform != "linux" or tag.startswith("linux_")]
    return (plain or tags)[0]
