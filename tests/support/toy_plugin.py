"""The toy steps as a bare plugin file, for `--plugin`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from emberge import Artifact, Step, Workspace, hookimpl

from tests.support.steps import Scores, Write


@dataclass(frozen=True, kw_only=True)
class Sleep(Step):
    """Counts how often it was started, and waits to be stopped the first time."""

    produces = "file"

    def run(self, workspace: Workspace) -> Artifact:
        started = workspace.work / "started"
        again = started.exists()
        started.touch()
        if not again:
            print("sleeping", flush=True)
            time.sleep(60)
        return Artifact("file", details={"went_on": again})


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    return {"write": Write, "scores": Scores, "sleep": Sleep}
