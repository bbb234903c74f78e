"""Commands killed at many steps: `python killed_run.py run|merge MODELS ROOT EVERY`.

Prints one JSON line for each death: whether the same command ended in the same bytes, and what it left.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from tests.support.fuse import DEATH, Fuse
from tests.support.killed_merge import digest, forked


def words(verb: str, models: Path, place: Path) -> list[str]:
    """The command line that merges two models into `place`."""
    folders = [str(models / name) for name in ("m1", "m2")]
    if verb == "merge":
        return ["merge", *folders, "--strategy", "linear", "--out", str(place / "out")]
    recipe = place.parent / "recipe.yaml"
    step = {"merge": {"models": folders, "strategy": "linear", "max_shard_size": "24KB"}}
    recipe.write_text(json.dumps({"steps": {"soup": step}}))
    return ["run", str(recipe), "--out", str(place / "out")]


def command(line: Sequence[str], fuse: Fuse | None = None) -> int:
    """Run a command in a copy of this process; its exit code."""

    def work() -> None:
        from emberge.cli.main import main

        # What it says is of no interest here.
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if fuse is None:
            os._exit(main(line))
        with fuse:
            code = main(line)
            fuse.end()
            told = json.dumps(fuse.calls)
        Path(line[-1], "..", "calls").resolve().write_text(told)
        os._exit(code)

    return forked(work)


def warm(line: Sequence[str]) -> None:
    """Run a command in this process: every copy of it has then imported what the command needs."""
    from emberge.cli.main import main

    with open(os.devnull, "w") as quiet, redirect_stdout(quiet):
        assert main(line) == 0


def contents(verb: str, out: Path) -> dict[str, str]:
    """The files of the result; of artifact.json what does not say how long it took."""
    result = out if verb == "merge" else (out / "soup").resolve()
    found = digest(result)
    record = json.loads((result / "artifact.json").read_text())
    del record["seconds"]
    return {**found, "artifact.json": json.dumps(record)}


def without_card(found: dict[str, str]) -> dict[str, str]:
    """The files but the card, its entry in the record, and those that both are written to first."""
    files = {
        name: content
        for name, content in found.items()
        if "README.md" not in name and not name.startswith(".artifact.json.")
    }
    if "artifact.json" in files:
        record = json.loads(files["artifact.json"])
        record["files"] = {n: facts for n, facts in record["files"].items() if n != "README.md"}
        files["artifact.json"] = json.dumps(record)
    return files


def main(verb: str, models: Path, root: Path, every: int) -> None:
    import emberge.merging.streaming.stream as journal

    journal.INTERVAL = 0.0
    whole, place = root / "whole", root / "place"
    whole.mkdir(parents=True)
    assert command(words(verb, models, whole), Fuse()) == 0
    expected = contents(verb, whole / "out")
    calls = json.loads((whole / "calls").read_text())
    (whole / "calls").unlink()
    clean = sorted(p.name for p in whole.iterdir())
    renames = [at for at, call in enumerate(calls, 1) if call in ("rename", "replace")]
    around = {at + step for at in renames[-6:] for step in (0, 1)}
    for at in sorted({*range(1, len(calls) + 1, every), *around, len(calls)}):
        place.mkdir()
        line = words(verb, models, place)
        assert command(line, Fuse(at=at)) == DEATH
        published = (place / "out").exists() if verb == "merge" else (place / "out/soup").exists()
        # The card of a published model is written when all else is.
        stands = contents(verb, place / "out") if published else {}
        whole_then = without_card(stands) == without_card(expected)
        code = command(line)
        found = {"published": published, "whole": whole_then, "code": code}
        found["same"] = contents(verb, place / "out") == expected
        left = {p.name for p in place.iterdir()} - set(clean)
        if verb == "run":
            left |= {p.name for p in (place / "out" / ".work").iterdir()}
        print(json.dumps({"at": at, "call": calls[at - 1], **found, "left": sorted(left)}))
        shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
