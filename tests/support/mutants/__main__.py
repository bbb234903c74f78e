"""Plant mutants, run the tests that may find them, and print the share that was found."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.mutants.known import is_equivalent
from tests.support.mutants.plant import Mutant, mutants
from tests.support.mutants.rooms import ROOMS, Room

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / ".mutants" / "results.jsonl"
GOAL = 0.9


@dataclass
class Tally:
    """Mutants of one file."""

    path: Path
    found: int = 0
    survived: list[Mutant] = field(default_factory=list)
    equivalent: int = 0

    @property
    def counted(self) -> int:
        return self.found + len(self.survived)


def main(words: Sequence[str]) -> int:
    """Return 0 when at least nine of ten mutants were found."""
    options = _options(words)
    kept = _Results(RESULTS, again=options.again)
    tallies: list[Tally] = []
    for name, room in ROOMS.items():
        files = [p for p in room.files(ROOT) if _is_wanted(options.what, name, p)]
        tallies += _of_room(name, room, files, options, kept)
    _print_table(tallies)
    found, counted = sum(t.found for t in tallies), sum(t.counted for t in tallies)
    return 0 if counted and found / counted >= GOAL else 1


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "mutants", description="Mutation testing of what must be right."
    )
    parser.add_argument("what", nargs="*", help="rooms, or parts of paths; all without one")
    parser.add_argument("--sample", type=int, help="at most so many mutants of every file")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--survivors", action="store_true", help="those not found so far, beside a sample"
    )
    parser.add_argument("--again", action="store_true", help="run what is known again")
    parser.add_argument("--list", action="store_true", help="count the mutants and run nothing")
    return parser.parse_args(words)


def _is_wanted(what: Sequence[str], room: str, path: Path) -> bool:
    parts = [word for word in what if word not in ROOMS]
    return not what or room in what or any(part in str(path) for part in parts)


def _of_room(
    name: str, room: Room, files: Sequence[Path], options: argparse.Namespace, kept: _Results
) -> Iterator[Tally]:
    """Yield the tally of every file, running what is not known yet."""
    from tests.support.mutants.trial import Trial

    tests = room.test_files(ROOT)
    digest = _digest(*((ROOT / path).read_bytes() for path in tests))
    trial: Trial | None = None
    reach = None
    try:
        for path in files:
            source = (ROOT / path).read_text(encoding="utf-8")
            tally = Tally(path)
            for mutant in _chosen(path, source, options, kept):
                if is_equivalent(mutant):
                    tally.equivalent += 1
                    continue
                was = None if options.list else kept.of(mutant, digest)
                if was is None and not options.list:
                    if trial is None:
                        trial = Trial(ROOT)
                        begun = time.monotonic()
                        reach = trial.reach(room.files(ROOT), tests)
                        print(f"{name}: tests pass in {time.monotonic() - begun:.0f} s", flush=True)
                    assert reach is not None
                    chosen = reach.tests(path, mutant.lines)
                    was = bool(chosen) and trial.finds(path, mutant.code, reach, chosen)
                    kept.add(mutant, digest, was)
                    if not was:
                        print(f"  {mutant}", flush=True)
                if was:
                    tally.found += 1
                else:
                    tally.survived.append(mutant)
            if tally.counted:
                print(f"{path}: {tally.found} of {tally.counted}", flush=True)
            yield tally
    finally:
        if trial is not None:
            trial.close()


def _chosen(
    path: Path, source: str, options: argparse.Namespace, kept: _Results
) -> Iterator[Mutant]:
    """Yield the mutants to count: those of the sample, or that were not found so far, or both."""
    drawn: set[str] = set()
    if options.sample or not options.survivors:
        for mutant in mutants(path, source, sample=options.sample, seed=options.seed):
            drawn.add(mutant.code)
            yield mutant
    if options.survivors and kept.has_survivors(path):
        yield from (m for m in mutants(path, source) if kept.survived(m) and m.code not in drawn)


class _Results:
    """Outcomes of mutants on disk: one that was found stays found, one that survived does while tests do."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self.path = path
        self.known: dict[str, tuple[bool, str]] = {}
        self.files: set[str] = set()
        self.again = again
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            return
        for line in path.read_text().splitlines():
            row = json.loads(line)
            self.known[row["mutant"]] = (row["found"], row["tests"])
            if not row["found"]:
                self.files.add(row["what"].partition(":")[0])

    def of(self, mutant: Mutant, tests: str) -> bool | None:
        """Return whether the mutant was found; None when that is not known."""
        found, with_tests = self.known.get(_key(mutant), (None, ""))
        if self.again:
            return None
        return found if found or with_tests == tests else None

    def has_survivors(self, path: Path) -> bool:
        """Return whether a mutant of the file was ever not found."""
        return str(path) in self.files

    def survived(self, mutant: Mutant) -> bool:
        """Return whether the mutant was run and not found."""
        return self.known.get(_key(mutant)) is not None and not self.known[_key(mutant)][0]

    def add(self, mutant: Mutant, tests: str, found: bool) -> None:
        """Keep an outcome."""
        row = {"mutant": _key(mutant), "tests": tests, "found": found, "what": str(mutant)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _key(mutant: Mutant) -> str:
    return _digest(str(mutant.path).encode(), mutant.code.encode())


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _print_table(tallies: Sequence[Tally]) -> None:
    survived = [mutant for tally in tallies for mutant in tally.survived]
    print(f"\nnot found ({len(survived)}):")
    for mutant in survived:
        print(f"  {mutant}")
    print(f"\n{'file':<64}{'mutants':>8}{'found':>7}{'share':>8}")
    for tally in tallies:
        if tally.counted:
            _print_row(str(tally.path), tally.counted, tally.found)
    _print_row("all", sum(t.counted for t in tallies), sum(t.found for t in tallies))
    print(f"{sum(t.equivalent for t in tallies)} more do what the original does (known.py)")


def _print_row(name: str, counted: int, found: int) -> None:
    print(f"{name:<64}{counted:>8}{found:>7}{found / max(1, counted):>8.1%}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copy is removed on the way out
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    sys.exit(main(sys.argv[1:]))
