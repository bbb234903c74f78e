"""Plant mutants, run the tests that reach them, and print those that no test finds."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.mutants.plant import Mutant, draw_mutants
from tests.support.mutants.reach import Reach, measure_reach, test_files
from tests.support.mutants.trial import Trial
from tests.support.places import ROOT
from tests.support.sources import CORE, PLUGINS, python_files

KEPT = ROOT / ".mutants"


def main(words: Sequence[str]) -> None:
    """Run the command and print its table."""
    options = _read_options(words)
    sources = [path.relative_to(ROOT) for path in python_files(CORE, PLUGINS)]
    wanted = [p for p in sources if not options.what or any(w in str(p) for w in options.what)]
    drawn = draw_mutants(ROOT, wanted, options.sample, options.seed)
    KEPT.mkdir(exist_ok=True)
    trial = Trial(ROOT)
    try:
        reach = _kept_reach(trial, sources)
        outcomes = [(mutant, _try_mutant(trial, reach, mutant)) for mutant in drawn]
    finally:
        trial.close()
    survived = [mutant for mutant, test in outcomes if not test]
    print(f"\nnot found ({len(survived)}):", *survived, sep="\n  ")
    print(f"\n{len(outcomes) - len(survived)} of {len(outcomes)} were found")


def _read_options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("mutants", description="Mutation testing.")
    parser.add_argument("what", nargs="*", help="parts of paths; all files without one")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    return parser.parse_args(words)


def _kept_reach(trial: Trial, sources: Sequence[Path]) -> Reach:
    """Return which test files reach which lines, measured anew when a source or a test has changed."""
    place = KEPT / f"reach-{_digest(*sources, *test_files(ROOT))}.json"
    if not place.exists():
        print("measuring which tests reach which lines", flush=True)
        measure_reach(trial, place)
    return Reach.read(place)


def _try_mutant(trial: Trial, reach: Reach, mutant: Mutant) -> str:
    """Return the test that finds the mutant, or an empty text; print and keep the outcome."""
    files = reach.files_of(mutant)
    place = KEPT / f"outcome-{_digest(mutant.path, *files, code=mutant.code)}.json"
    if not place.exists():
        found = trial.find(mutant.path, mutant.code, files, 60 + 5 * reach.seconds_of(files))
        place.write_text(json.dumps(found))
    found = str(json.loads(place.read_text()))
    print(f"{mutant}\n      {found or 'NOT FOUND'}", flush=True)
    return found


def _digest(*paths: str | Path, code: str = "") -> str:
    """Return a hash of the files' names and content, and of `code`."""
    digest = hashlib.sha256(code.encode())
    for path in paths:
        digest.update(f"\0{path}\0".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()[:24]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copy is removed on the way out
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    main(sys.argv[1:])
