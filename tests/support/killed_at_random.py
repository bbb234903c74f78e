"""A merge of some size, killed at random moments: `python killed_at_random.py MODELS ROOT TIMES`.

Prints one JSON line for each merge: how often it was killed, how much was left to do then, and whether
the bytes came out the same.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.killed_merge import digest, forked


def merge(models: Path, out: Path, seen: Callable[[float, float, str], None] | None = None) -> None:
    """Merge the folders below `models` along their common circle, in two files, on two threads."""
    from emberge import Machine
    from emberge.merging import MergeInput
    from emberge_merge import MultiSlerp

    from tests.support.merges import merge_models

    merge_models(
        [MergeInput(p.name, p) for p in sorted(models.iterdir())],
        strategy=[MultiSlerp()],
        out=out,
        max_shard_size="80MB",
        machine=Machine(workers=2),
        progress=seen,
    )


def killed_after(seconds: float, work: Callable[[], None]) -> bool:
    """Start the work in a copy of this process and kill it; False when it was faster."""
    child = os.fork()
    if not child:
        code = 3
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def went_on(models: Path, out: Path) -> float:
    """Merge to the end; the share of the bytes that were left to do."""
    told = out.parent / "told"

    def work() -> None:
        most = 0.0

        def seen(done: float, total: float, name: str) -> None:
            nonlocal most
            most = max(most, total)

        merge(models, out, seen)
        told.write_text(str(most))

    assert forked(work) == 0
    left = float(told.read_text())
    told.unlink()
    return left


def main(models: Path, root: Path, times: int) -> None:
    import emberge.merging.streaming.stream as journal
    import emberge_merge.methods.spherical.multi_slerp  # noqa: F401

    journal.INTERVAL = 0.05
    (root / "whole").mkdir(parents=True)
    began = time.monotonic()
    everything = went_on(models, root / "whole" / "out")
    seconds = time.monotonic() - began
    expected = digest(root / "whole" / "out")
    draw = random.Random(0)
    killed = 0
    while killed < times:
        place = root / "place"
        place.mkdir()
        out, side = place / "out", place / ".out.partial"
        kills = 0
        for _ in range(draw.choice((1, 1, 2))):
            if not out.exists():
                after = draw.uniform(0, seconds)
                kills += killed_after(after, lambda: merge(models, out))  # noqa: B023
        killed += kills
        found = {"kills": kills, "side": side.exists(), "published": out.exists()}
        left = 0.0 if out.exists() else went_on(models, out) / everything
        same = digest(out) == expected
        names = [path.name for path in place.iterdir()]
        print(json.dumps({**found, "left": left, "same": same, "names": names}), flush=True)
        shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
