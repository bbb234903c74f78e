"""Draw cases for as long as asked, run each in a fork, and print one table."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.fuzz.sandbox import Case, Outcome, Place, Sandbox
from tests.support.fuzz.subjects import MAP, MERGE, SCORES, SUBJECTS, Sound, make_sound
from tests.support.places import ROOT

FAULTS = ("traceback", "crash", "hang", "memory", "outside", "leak", "escaped", "unsound")
FOUND = ROOT / ".fuzz"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "EMBERGE_HASH_CACHE": "never",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(words: Sequence[str]) -> int:
    """Return 0 when no case had a fault."""
    options = _options(words)
    os.environ.update(ENVIRONMENT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
    print(
        f"seed {options.seed}; a case again: --seed {options.seed} --only SUBJECT --number N",
        flush=True,
    )
    scratch = Path(tempfile.mkdtemp(prefix="emberge-fuzz-"))
    try:
        with _prepared(scratch, options.seed) as (sandbox, sound):
            sandbox.debug = options.number is not None
            outcomes = _draw_all(options, sandbox, sound)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _print_table(outcomes)
    return 1 if any(one.kind in FAULTS for of in outcomes.values() for one in of) else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("fuzz", description="Wrong input in great numbers.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--only", choices=SUBJECTS, action="append", help="a subject; default: all")
    parser.add_argument("--number", type=int, help="one case, with its output")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    return parser.parse_args(words)


@contextlib.contextmanager
def _prepared(scratch: Path, seed: int) -> Iterator[tuple[Sandbox, Sound]]:
    """Make the sound inputs, start the server, and load what cases need."""
    root = scratch / "sound"
    make_sound(root)
    sandbox = Sandbox(scratch / "case", scratch / "cache", ENVIRONMENT)
    (scratch / "cache").mkdir()
    shipped = sorted((ROOT / "merge_recipes").rglob("*.yaml"))
    recipes = tuple(p.read_text() for p in shipped if "corpora" not in p.parts)
    sound = Sound(root, recipes)
    _warm(sandbox, sound)
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.support.fuzz.server", str(root), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
    )
    try:
        assert server.stdout is not None
        yield sandbox, replace(sound, port=int(server.stdout.readline()))
    finally:
        server.kill()
        server.wait()


def _warm(sandbox: Sandbox, sound: Sound) -> None:
    """Run sound cases: their results become inputs, and the libraries that they took are imported here."""
    modules = sandbox.scratch.parent / "modules.json"
    for text, result, name in ((MERGE, "out", "out"), (MAP, "out/map", "map"), (SCORES, "", "")):

        def build(place: Place, text: str = text, result: str = result, name: str = name) -> Case:
            def keep() -> None:
                modules.write_text(json.dumps(sorted(sys.modules)))
                if result:
                    links = name == "out"
                    shutil.copytree(place.out / result, sound.root / name, symlinks=links)

            sound.copy(place, "a", "b", "base", "pairs.jsonl", "data")
            (place.given / "recipe.yaml").write_text(text)
            return Case([["run", "recipe.yaml", "--out", str(place.out / "out")]], then=keep)

        outcome = sandbox.run("warm", build)
        if outcome.kind != "done":
            raise SystemExit(f"a sound case ends with {outcome.kind}:\n{outcome.text}")
        for module in json.loads(modules.read_text()):
            if module.partition(".")[0] not in ("__main__", "tests"):
                with contextlib.suppress(Exception):  # some can only be imported by another
                    importlib.import_module(module)


def _draw_all(
    options: argparse.Namespace, sandbox: Sandbox, sound: Sound
) -> dict[str, list[Outcome]]:
    names = options.only or list(SUBJECTS)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    until = time.monotonic() + 60 * options.minutes
    number = options.first if options.number is None else options.number
    with contextlib.suppress(KeyboardInterrupt):  # the table has what there is
        while time.monotonic() < until:
            for name in names:
                outcome = _run_one(name, number, options.seed, sandbox, sound)
                outcomes[name].append(outcome)
                if options.number is not None:
                    print(
                        f"{name} {number}: {outcome.kind}, {outcome.seconds:.1f} s\n{outcome.text}"
                    )
                elif outcome.kind in FAULTS:
                    _keep_fault(name, number, options.seed, outcome)
            if options.number is not None:
                break
            number += 1
    return outcomes


def _run_one(name: str, number: int, seed: int, sandbox: Sandbox, sound: Sound) -> Outcome:
    draw = random.Random(f"{seed} {name} {number}")
    return sandbox.run(f"{name}-{number}", lambda place: SUBJECTS[name](draw, number, sound, place))


def _keep_fault(name: str, number: int, seed: int, outcome: Outcome) -> None:
    """Print the fault in one line and keep its output."""
    FOUND.mkdir(exist_ok=True)
    (FOUND / f"{seed}-{name}-{number}.txt").write_text(f"{outcome.kind}\n{outcome.text}")
    print(f"  {name} {number}: {outcome.kind}: {_gist(outcome)[:160]}", flush=True)


def _gist(outcome: Outcome) -> str:
    lines = [line for line in outcome.text.splitlines() if line.strip()]
    if not lines:
        return ""
    if outcome.kind in ("outside", "leak"):
        return lines[0]
    return next((line for line in lines if "debug shows where" in line), lines[-1])


def _print_table(outcomes: dict[str, list[Outcome]]) -> None:
    columns = ("subject", "cases", "done", "refused", *FAULTS, "median s", "longest s", "most MB")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for name, found in outcomes.items():
        if not found:
            continue
        kinds = Counter(one.kind for one in found)
        seconds = [one.seconds for one in found]
        cells = [
            name,
            len(found),
            kinds["done"],
            kinds["refused"],
            *(kinds[kind] for kind in FAULTS),
        ]
        cells += [f"{statistics.median(seconds):.2f}", f"{max(seconds):.1f}"]
        cells += [f"{max(one.memory for one in found) / 1e6:.0f}"]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
