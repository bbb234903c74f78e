"""Run the tests as on other machines: with smaller vector units, and with one thread or two.

    python -m tests.support.machines [--cpu avx2 ...] [--threads 1 ...] [PYTEST ARGUMENTS]

Without arguments for pytest the whole suite runs, its files beside each other. A CPU plays all that are less
able than itself, because the libraries that compute look at the environment before they choose their code:
torch's own kernels, oneDNN, MKL, and NumPy's OpenBLAS. Even `torch.randn` draws other last bits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
# Of the least able first. The least is SSE 4: torch's name for it is `default`.
CPUS: Mapping[str, Mapping[str, str]] = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_CBWR": "AVX512",
        "OPENBLAS_CORETYPE": "SkylakeX",
    },
}
THREADS = (1, 2)
LOGS = Path("out/machines")


@dataclass(frozen=True)
class Run:
    """What came of the tests on one machine."""

    cpu: str
    threads: int
    seconds: float
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.cpu}, {self.threads} {'thread' if self.threads == 1 else 'threads'}"


def able() -> tuple[list[str], str]:
    """Return the names of CPUS that this one can play, and torch's name for its best."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    env = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    best = done.stdout.split()[-1].lower()
    names = list(CPUS)
    # An ARM or PowerPC has vector units of other names, and plays itself.
    return (names[: names.index(best) + 1] if best in names else ["default"]), best


def run(cpu: str, threads: int, arguments: Sequence[str]) -> Run:
    """Run pytest on one machine and return what it reports; its output goes to a file."""
    folder = ROOT / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{cpu}-{threads}"
    report, log = place.with_suffix(".xml"), place.with_suffix(".log")
    report.unlink(missing_ok=True)
    env = {**os.environ, **CPUS[cpu], "OMP_NUM_THREADS": str(threads)}
    env |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}
    # Threads that wait for the next small tensor leave the core to the files of tests beside them.
    env["OMP_WAIT_POLICY"] = "PASSIVE"
    command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={report}"]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        code = subprocess.call(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    seconds = time.monotonic() - began
    if not report.is_file():
        return Run(cpu, threads, seconds, failed=(f"pytest ended with {code}, see {log}",))
    return counted(Run(cpu, threads, seconds), report)


def counted(run: Run, report: Path) -> Run:
    """Return the run with the counts and names of pytest's report."""
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Run(run.cpu, run.threads, run.seconds, passed, skipped, tuple(failed))


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the table, and below it the tests that failed."""
    yield f"{'machine':<20}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>9}"
    for one in runs:
        minutes, seconds = divmod(round(one.seconds), 60)
        spent = f"{minutes}m{seconds:02d}s"
        yield f"{one.name:<20}{one.passed:>8}{len(one.failed):>8}{one.skipped:>9}{spent:>9}"
    for one in runs:
        yield from (f"failed with {one.name}: {name}" for name in one.failed)


def main(words: Sequence[str] | None = None) -> int:
    """Run the tests on every machine that was asked for, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.machines",
        description="Run the tests as on other machines, and print one table. What is left over goes to "
        f"pytest; output is kept in {LOGS}.",
        epilog="example: python -m tests.support.machines --cpu default tests/core/ranks/test_ranks.py -x",
    )
    parser.add_argument(
        "--cpu", action="append", choices=list(CPUS), help="may be repeated; by default all"
    )
    parser.add_argument(
        "--threads", action="append", type=int, help="may be repeated; by default 1 and 2"
    )
    given, arguments = parser.parse_known_args(words)
    can, best = able()
    asked = given.cpu or list(CPUS)
    for cpu in asked:
        if cpu not in can:
            print(f"left out: {cpu}, because this machine's best is {best}")
    beside = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile"]
    runs = []
    for cpu in [cpu for cpu in asked if cpu in can]:
        for threads in given.threads or THREADS:
            runs.append(run(cpu, threads, arguments or beside))
            print(f"{runs[-1].name}: {len(runs[-1].failed)} failed", flush=True)
    print("", *table(runs), sep="\n")
    return 1 if not runs or any(one.failed or not one.passed for one in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
