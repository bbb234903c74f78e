"""Upcyclings and downcyclings killed on the way: `python killed_upcycle.py MODEL ROOT DEATHS`.

Prints one JSON line for each death: the call before which it came, and what is left when the same command
has run again, beside what an unharmed run leaves.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.support.fuse import DEATH, Fuse
from tests.support.killed_merge import digest
from tests.support.killed_run import command

RECIPE = """
steps:
  routed:
    upcycle: {{model: {model}, experts: 4, noise: 0.1, layers: all}}
  back:
    downcycle: {{model: $routed}}
"""


def contents(out: Path) -> dict[str, str]:
    """Return the files of both results; of artifact.json what does not depend on the time it took."""
    found = {}
    for name in ("routed", "back"):
        result = (out / name).resolve()
        found |= {f"{name}/{path}": content for path, content in digest(result).items()}
        record = json.loads((result / "artifact.json").read_text())
        del record["seconds"]
        found[f"{name}/artifact.json"] = json.dumps(record)
    return found


def main(model: Path, root: Path, deaths: int) -> None:
    import emberge.merging.streaming.journal as journal
    import sentence_transformers  # noqa: F401  every copy of this process has it then
    import transformers  # noqa: F401

    journal.INTERVAL = 0.0
    root.mkdir(parents=True)
    recipe = root / "recipe.yaml"
    recipe.write_text(RECIPE.format(model=model))
    whole, place = root / "whole", root / "place"
    whole.mkdir()
    line = ["run", str(recipe), "--out", str(whole / "out")]
    assert command(line, Fuse()) == 0
    expected = contents(whole / "out")
    calls = json.loads((whole / "calls").read_text())
    for number in range(1, deaths + 1):
        at = number * len(calls) // (deaths + 1)
        place.mkdir()
        line = ["run", str(recipe), "--out", str(place / "out")]
        assert command(line, Fuse(at=at)) == DEATH
        code = command(line)
        found = contents(place / "out")
        other = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
        print(json.dumps({"at": at, "call": calls[at - 1], "code": code, "other": other}))
        shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
