"""Merges and builds killed at every step, in children of one process that has everything imported.

`python killed_merge.py MODELS ROOT FIRST STEP [build|direct]` prints one JSON line for each way to die, from
the `FIRST`-th in steps of `STEP`. With `direct`, tensors are written direct however small they are.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.fuse import DEATH, Fuse


def digest(folder: Path) -> dict[str, str]:
    """The content of every file below a folder, and every folder."""
    import hashlib

    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def forked(work: Callable[[], None]) -> int:
    """Do the work in a copy of this process; how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 3
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def merge(models: Path, out: Path, seen: Callable[..., None] | None = None) -> None:
    """Merge the folders below `models` by TIES against the one called `base`."""
    from emberge import Machine, PerModel
    from emberge.merging import MergeInput
    from emberge_merge import SignConsensus, Trim

    from tests.support.merges import merge_models

    merge_models(
        [MergeInput(p.name, p) for p in sorted(models.iterdir()) if p.name != "base"],
        strategy=[Trim(density=PerModel(0.3)), SignConsensus()],
        base=MergeInput("base", models / "base"),
        out=out,
        max_shard_size="24KB",
        machine=Machine(workers=1),
        progress=seen,
    )


def build(models: Path, out: Path) -> None:
    """Build an upcycled checkpoint of the folder `base`, with a file changed and one added."""
    from emberge import Machine

    from tests.support import built

    built.build(
        models / "base",
        out,
        "layers.0.mlp.up_proj.weight",
        files={"config.json": {"num_experts": built.EXPERTS}, "code/model.py": "pass\n"},
        max_shard_size="24KB",
        machine=Machine(workers=1),
    )


WORK: dict[str, Callable[[Path, Path], None]] = {"merge": merge, "build": build, "direct": merge}


def undisturbed(
    models: Path, root: Path, work: Callable[[Path, Path], None]
) -> tuple[dict[str, str], Fuse]:
    """The bytes of a merge that nobody disturbs, and what it did to the disk."""
    # Imports, and a first comparison of kernels, may try the temporary folder, which would count.
    import torch  # noqa: F401
    from emberge.merging import build_checkpoint, merge_checkpoints  # noqa: F401
    from emberge.numerics import kernels

    kernels()
    (root / "whole").mkdir(parents=True)
    with Fuse(power=0) as fuse:
        work(models, root / "whole" / "out")
        fuse.end()
    whole = root / "whole" / "out"
    size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    assert fuse.written >= size, "something was written past the fuse"
    return digest(whole), fuse


def ways(fuse: Fuse) -> Iterator[dict[str, Any]]:
    """Each way to die: before each call, after the last, in the middle of each write; by a power cut
    wherever something is not synced."""
    published = len(fuse.calls) - fuse.calls[::-1].index("replace")
    for at in range(1, len(fuse.calls) + 1):
        yield {"at": at}
        if at in fuse.risky:  # what a power cut left of a published folder is worth a closer look
            draws = 9 if at > published else 1
            yield from ({"at": at, "power": at + draw} for draw in range(draws))
        if at in fuse.divisible:
            yield {"at": at, "half": True}


def die(
    models: Path, place: Path, way: Mapping[str, Any], work: Callable[[Path, Path], None]
) -> None:
    """Do the work, and die on the way."""

    def dying() -> None:
        with Fuse(**way) as fuse:
            work(models, place / "out")
            fuse.end()

    code = forked(dying)
    assert code == DEATH, code


def main(models: Path, root: Path, first: int, step: int, kind: str = "merge") -> None:
    import emberge.merging.streaming.stream as journal
    from emberge.tensor_files import tensor_writer

    import tests.support.built
    import tests.support.merges  # noqa: F401  (what is imported first may try the temporary folder)

    # A clock by which every third tensor or so is time to sync: names wait, and others are done.
    journal.time = SimpleNamespace(monotonic=itertools.count().__next__)  # type: ignore[assignment]
    if kind == "direct":
        tensor_writer.DIRECT = 0
    work = WORK[kind]
    expected, fuse = undisturbed(models, root, work)
    for way in list(ways(fuse))[first::step]:
        place = root / "place"
        place.mkdir()
        die(models, place, way, work)
        out, side = place / "out", place / ".out.partial"
        found = {"published": out.exists(), "done": _done(side / "journal.jsonl")}
        if not out.exists():
            with Fuse() as spared:
                work(models, out)
            found["pieces"] = spared.calls.count("pwrite")
        found |= {"same": digest(out) == expected, "left": sorted(p.name for p in place.iterdir())}
        print(json.dumps({**way, "call": fuse.calls[way["at"] - 1], **found}))
        shutil.rmtree(place)


def _done(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") - 1 if journal.is_file() else -1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
