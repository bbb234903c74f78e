"""One run of `make gpu`: its folder, its devices, and commands that it runs and logs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.without_install import ROOT

_LINES = 3


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit code (None when it took too long), seconds, and output."""

    code: int | None
    seconds: float
    output: str

    @property
    def failed(self) -> bool:
        """Whether it did not end with 0."""
        return self.code != 0

    @property
    def reason(self) -> str:
        """Its last lines and its exit code, for a table."""
        if self.code is None:
            return f"was stopped after {self.seconds:.0f} s"
        last = [line for line in self.output.splitlines() if line.strip()][-_LINES:]
        return f"exit code {self.code}: {' '.join(last)[-300:]}"


@dataclass(frozen=True)
class BenchRun:
    """Folder, devices as `--devices` takes them, whether sizes are small, environment, longest wait."""

    folder: Path
    devices: str
    small: bool
    environment: Mapping[str, str]
    timeout: float

    @property
    def device(self) -> str:
        """The first device, as torch calls it."""
        return "cuda:0" if self.devices == "cuda" else self.devices.split(",")[0]

    def emberge(self, log: str, *words: str) -> Done:
        """Run `python -m emberge words…`; all that it prints goes to `logs/<log>.log`."""
        return self.python(log, "-m", "emberge", *words)

    def python(self, log: str, *words: str) -> Done:
        """Run the interpreter that runs this, from the clone's root."""
        path = self.folder / "logs" / f"{log}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        code: int | None
        with path.open("w+", encoding="utf-8", errors="replace") as file:
            try:
                code = subprocess.run(
                    [sys.executable, *words],
                    cwd=ROOT,
                    env=dict(self.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=self.timeout,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
            seconds = time.monotonic() - began
            file.seek(0)
            return Done(code, seconds, file.read())
