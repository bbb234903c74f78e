"""Minings killed on the way: `python killed_mining.py MODEL ROOT DEATHS`.

Prints one JSON line for each death: the moment, and what differs from an unharmed run when the same command
has run again. Half of the deaths come before a call to the disk, half after a random time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

from tests.support.fuse import DEATH, Fuse
from tests.support.killed_at_random import killed_after
from tests.support.killed_merge import digest
from tests.support.killed_run import command, warm
from tests.support.tiny import WORDS

RECIPE = """
steps:
  mined:
    mine_hard_negatives:
      data: {rows}
      teachers: {model}
      count: 3
      range: [1, 9]
      sampling: random
      on_short: fill
"""


def rows(count: int) -> str:
    """Lines of queries with a positive each."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=6)) for _ in range(2 * count)]
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return "".join(json.dumps({"query": q, "pos": [p]}) + "\n" for q, p in pairs)


def contents(out: Path) -> dict[str, str]:
    """Return the files of the result; of artifact.json what does not depend on the time it took."""
    result = (out / "mined").resolve()
    record = json.loads((result / "artifact.json").read_text())
    del record["seconds"]
    return {**digest(result), "artifact.json": json.dumps(record)}


def main(model: Path, root: Path, deaths: int) -> None:
    import emberge.encoding.embedding_store as embedding_store
    from emberge_data.steps import mine_hard_negatives

    # Several segments of embeddings and blocks of queries even here.
    embedding_store.SEGMENT, mine_hard_negatives.BLOCK = 16, 8
    root.mkdir(parents=True)
    recipe = root / "recipe.yaml"
    (root / "rows.jsonl").write_text(rows(40), "utf-8")
    recipe.write_text(RECIPE.format(model=model, rows=root / "rows.jsonl"), "utf-8")
    whole, place = root / "whole", root / "place"
    whole.mkdir()
    warm(["run", str(recipe), "--out", str(root / "warm")])
    began = time.monotonic()
    assert command(["run", str(recipe), "--out", str(whole / "out")], Fuse()) == 0
    seconds = time.monotonic() - began
    expected = contents(whole / "out")
    calls = json.loads((whole / "calls").read_text())
    draw = random.Random(1)
    for number in range(deaths):
        place.mkdir()
        line = ["run", str(recipe), "--out", str(place / "out")]
        if number % 2:
            at = draw.randrange(1, len(calls) + 1)
            assert command(line, Fuse(at=at)) == DEATH
            died = {"at": at, "of": len(calls), "call": calls[at - 1]}
        else:
            after = draw.uniform(0, seconds)
            died = {"after": after, "of": seconds, "killed": killed_command(after, line)}
        code = command(line)
        found = contents(place / "out")
        other = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
        print(json.dumps({**died, "code": code, "other": other}), flush=True)
        shutil.rmtree(place)


def killed_command(after: float, line: list[str]) -> bool:
    """Start a command in a copy of this process and kill it; False if it was faster."""

    def work() -> None:
        from emberge.cli.main import main as emberge

        # Its progress is of no interest here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        emberge(line)

    return killed_after(after, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
