"""Steps that write models, killed on the way: `python killed_steps.py RECIPE ROOT DEATHS OUTSIDE`.

They die before calls that change the disk, at DEATHS places all over the run and behind its last renames, and
OUTSIDE times at any moment, by a signal. Prints one JSON line for each death: when it came, and what differs
when the same command has run again from what an unharmed run leaves.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.fuse import DEATH, Fuse
from tests.support.killed_merge import digest
from tests.support.killed_run import command, warm
from tests.support.places import ROOT, SUPPORT

AROUND = 6


def contents(out: Path) -> dict[str, str]:
    """Return the files of all results; of artifact.json what does not depend on the time it took."""
    found = {}
    for name in sorted(one.name for one in out.iterdir() if one.is_symlink()):
        result = (out / name).resolve()
        found |= {f"{name}/{path}": content for path, content in digest(result).items()}
        record = json.loads((result / "artifact.json").read_text())
        del record["seconds"]
        found[f"{name}/artifact.json"] = json.dumps(record)
    return found


def killed(line: Sequence[str], seconds: float) -> None:
    """Run a command in a copy of this process, and kill that after some seconds."""
    from emberge.cli.main import main

    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(line))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def assert_same_bytes(text: str, place: Path, *, deaths: int, outside: int) -> None:
    """Kill a recipe's run in a process of its own, and hold each that went on to one that was not killed."""
    recipe = place / "recipe.yaml"
    recipe.write_text(text)
    path = os.pathsep.join([str(ROOT), *sys.path])
    numbers = [str(deaths), str(outside)]
    run = subprocess.run(
        [sys.executable, SUPPORT / "killed_steps.py", recipe, place / "work", *numbers],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) >= deaths + outside
    assert [one for one in found if one["code"] != 0 or one["other"]] == []


def main(recipe: Path, root: Path, deaths: int, outside: int) -> None:
    import emberge.merging.streaming.stream as journal

    journal.INTERVAL = 0.0
    root.mkdir(parents=True)
    whole, place = root / "whole", root / "place"
    whole.mkdir()
    line = ["run", str(recipe), "--out", str(whole / "out")]
    warm(["run", str(recipe), "--out", str(root / "warm")])
    began = time.monotonic()
    assert command(line, Fuse()) == 0
    seconds = time.monotonic() - began
    expected = contents(whole / "out")
    calls = json.loads((whole / "calls").read_text())
    line = ["run", str(recipe), "--out", str(place / "out")]

    def again(when: str, die: Callable[[], None]) -> None:
        place.mkdir()
        die()
        code = command(line)
        found = contents(place / "out")
        other = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
        print(json.dumps({"when": when, "code": code, "other": other}))
        shutil.rmtree(place)

    def fused(at: int) -> None:
        assert command(line, Fuse(at=at)) == DEATH

    # The model's own is among them: behind it the step has still to end.
    renames = [at for at, call in enumerate(calls, 1) if call in ("rename", "replace")]
    places = {number * len(calls) // (deaths + 1) for number in range(1, deaths + 1)}
    for at in sorted(places | {at + 1 for at in renames[-AROUND:]} & {*range(len(calls) + 1)}):
        again(f"{at} {calls[at - 1]}", lambda at=at: fused(at))
    drawn = random.Random(7)
    for _ in range(outside):
        moment = drawn.random() * seconds
        again(f"after {moment:.2f} s", lambda moment=moment: killed(line, moment))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
