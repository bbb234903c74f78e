"""A plain merge imports nothing of the features that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys
from pathlib import Path
from emberge.merging import MergeInput, MergeRequest, merge_checkpoints
from emberge_merge.methods.weighted_sums import Linear
*folders, out = map(Path, sys.argv[1:])
inputs = tuple(MergeInput(folder.name, folder) for folder in folders)
merge_checkpoints(MergeRequest(inputs=inputs, strategy=(Linear(),)), out)
print(json.dumps(sorted(sys.modules)))
"""
COMMAND = """
import json, sys
from emberge.cli.main import main
a, b, out = sys.argv[1:]
assert main(["merge", a, b, "--strategy", "linear", "--out", out, "--quiet"]) == 0
print(json.dumps(sorted(sys.modules)))
"""
FEATURES = (
    "emberge.merging.adapter_config",
    "emberge.merging.adapter_reader",
    "emberge.merging.apply_adapter",
    "emberge_merge.adapters",
    "emberge.merging.merge_statistics",
    "emberge.merging.statistics_file",
    "emberge.merging.tokens",
    "emberge.merging.loadable_models",
    "emberge_report.formats",
    "emberge_report.report_data",
)


@pytest.mark.parametrize("code", [CHILD, COMMAND], ids=["function", "command"])
def test_a_plain_merge_is_light(code: str, berts: list[Path], tmp_path: Path) -> None:
    words = [*map(str, berts[:2]), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "emberge.merging.streaming.stream" in loaded
    features = {
        name for name in loaded for room in FEATURES if name == room or name.startswith(f"{room}.")
    }
    assert not features
