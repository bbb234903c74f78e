"""Steps that write models, killed on the way: `python killed_steps.py RECIPE ROOT DEATHS OUTSIDE`.

They die before calls that change the disk, at DEATHS places all over the run and behind its last renames, and
OUTSIDE times at any moment, by a signal. Prints one JSON line for each death: when it came, and what differs
when the same command has run again from what an unharmed run leaves.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.fuse import DEATH, Fuse
from tests.support.killed_at_random import killed_after
from tests.support.killed_merge import digest
from tests.support.killed_run import command, warm
from tests.support.places import ROOT, SUPPORT

AROUND = 6
# Keys of times in the files of results, by emberge and by mteb.
_TIMES = frozenset(("seconds", "cpu_seconds", "evaluation_time", "evaluation_phases", "date"))
# Files with times in their text.
_TIMED_FILES = frozenset(("artifact.json", "metrics.jsonl", "README.md"))


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


def contents_without_times(out: Path) -> dict[str, str]:
    """Return the files of all results without the times in them, in which two runs differ."""
    found = {}
    for name in sorted(one.name for one in out.iterdir() if one.is_symlink()):
        result = (out / name).resolve()
        for path in sorted(result.rglob("*")):
            if path.name in _TIMED_FILES or path.is_dir():
                continue
            content = path.read_bytes()
            if path.suffix == ".json":
                content = json.dumps(_drop_times(json.loads(content))).encode()
            place = path.relative_to(result).as_posix()
            found[f"{name}/{place}"] = hashlib.sha256(content).hexdigest()
    return found


def _drop_times(value: Any) -> Any:
    if isinstance(value, dict):
        lasting = {key: one for key, one in value.items() if key not in _TIMES}
        return {key: _drop_times(one) for key, one in lasting.items()}
    return [_drop_times(one) for one in value] if isinstance(value, list) else value


class KilledRecipe:
    """A recipe whose run is killed and then run again, and the result of an unharmed run."""

    def __init__(
        self, recipe: Path, root: Path, read: Callable[[Path], dict[str, str]] = contents
    ) -> None:
        self._read = read
        self._place, whole = root / "place", root / "whole"
        self.out = self._place / "out"
        self._line = ["run", str(recipe), "--out", str(self.out)]
        whole.mkdir()
        warm(["run", str(recipe), "--out", str(root / "warm")])
        began = time.monotonic()
        assert command(["run", str(recipe), "--out", str(whole / "out")], Fuse()) == 0
        self.seconds = time.monotonic() - began
        self.calls: list[str] = json.loads((whole / "calls").read_text())
        self._expected = read(whole / "out")

    def die_at(self, at: int) -> dict[str, Any]:
        """Die right before the `at`-th call that changes the disk; return when that was.

        progress.json is written at most once a second, so a faster run makes fewer calls and may have ended.
        """
        self._place.mkdir()
        code = command(self._line, Fuse(at=at))
        assert code == DEATH or (code == 0 and at > 0.8 * len(self.calls)), (code, at)
        return {"at": at, "of": len(self.calls), "call": self.calls[at - 1]}

    def die_after(self, seconds: float) -> dict[str, Any]:
        """Die by a signal after some seconds; return when that was, and False if the run was faster."""

        def work() -> None:
            from emberge.cli.main import main as emberge

            # Its progress is of no interest here.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            emberge(self._line)

        self._place.mkdir()
        killed = killed_after(seconds, work)
        return {"after": seconds, "of": self.seconds, "killed": killed}

    def die_in_turns(self, number: int, draw: random.Random) -> dict[str, Any]:
        """Die before a random call if the number is odd, else at a random moment; return when that was."""
        if number % 2:
            return self.die_at(draw.randrange(1, len(self.calls) + 1))
        return self.die_after(draw.uniform(0, self.seconds))

    def run_again(self) -> dict[str, Any]:
        """Run the same command to its end; return its exit code, and the files that are not as expected."""
        code = command(self._line)
        left, expected = self._read(self.out), self._expected
        other = sorted(n for n in {*left, *expected} if left.get(n) != expected.get(n))
        shutil.rmtree(self._place)
        return {"code": code, "other": other}


def read_deaths(script: str, *words: object) -> list[dict[str, Any]]:
    """Run a script of this folder in a process of its own; return what it prints of each death."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    run = subprocess.run(
        [sys.executable, SUPPORT / script, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def assert_same_ends(deaths: Sequence[dict[str, Any]]) -> None:
    """Hold each run that went on to the run that was not killed."""
    assert [death for death in deaths if death["code"] != 0 or death["other"]] == []


def assert_same_bytes(text: str, place: Path, *, deaths: int, outside: int) -> None:
    """Kill a recipe's run in a process of its own, and hold each that went on to one that was not killed."""
    recipe = place / "recipe.yaml"
    recipe.write_text(text)
    found = read_deaths("killed_steps.py", recipe, place / "work", deaths, outside)
    assert len(found) >= deaths + outside
    assert_same_ends(found)


def main(recipe: Path, root: Path, deaths: int, outside: int) -> None:
    import emberge.merging.streaming.stream as journal

    journal.INTERVAL = 0.0
    root.mkdir(parents=True)
    runs = KilledRecipe(recipe, root)
    calls = runs.calls
    # The model's own is among them: behind it the step has still to end.
    renames = [at for at, call in enumerate(calls, 1) if call in ("rename", "replace")]
    places = {number * len(calls) // (deaths + 1) for number in range(1, deaths + 1)}
    for at in sorted(places | {at + 1 for at in renames[-AROUND:]} & {*range(len(calls) + 1)}):
        print(json.dumps({**runs.die_at(at), **runs.run_again()}))
    drawn = random.Random(7)
    for _ in range(outside):
        print(json.dumps({**runs.die_after(drawn.random() * runs.seconds), **runs.run_again()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
