"""`emberge check` of recipes that name models of a hub, in a process that knows that hub alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# One process for all: most of a check's time is the import of transformers.
CHECK_ALL = """
import contextlib, io, json, sys
from emberge.cli.main import main
found = {}
for name in sys.argv[1:]:
    with io.StringIO() as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["check", name, "--long"])
        found[name] = code, said.getvalue()
print(json.dumps(found))
"""


def check(names: Sequence[str], cache: Path, hub: str) -> dict[str, tuple[int, str]]:
    """Check recipes beside a hub in a process of their own; return each one's exit code and output."""
    # Sound of the hub is read with this package, without which check has an error of its own.
    package = cache.parent / "packages" / "torchcodec" / "__init__.py"
    package.parent.mkdir(parents=True, exist_ok=True)
    package.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(package.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_DATASETS_OFFLINE": "1",  # that hub has models and no data
        "HF_ENDPOINT": hub,
    }
    command = [sys.executable, "-c", CHECK_ALL, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: (code, said) for name, (code, said) in json.loads(done.stdout).items()}
