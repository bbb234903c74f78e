"""The tests of tests/gpu, run by pytest, as one row."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from tests.gpu.bench_run import BenchRun
from tests.gpu.bench_table import Row

PART = "tests"


def run_tests(run: BenchRun) -> Iterator[Row]:
    """Yield one row with the counts of tests, and one for each that failed."""
    report = run.folder / "tests.xml"
    report.unlink(missing_ok=True)
    # Warnings are errors in this project's own tests, which know the versions that they run with.
    words = ("-m", "pytest", "tests/gpu", "-W", "default", "-p", "no:cacheprovider")
    done = run.python("tests", *words, f"--junitxml={report}")
    if not report.is_file():
        yield Row(PART, "tests/gpu", "failed", done.reason)
        return
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    bad = [
        case for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    left = [case for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(bad) - len(left)
    counted = f"{passed} passed, {len(bad)} failed, {len(left)} skipped, {done.seconds:.0f} s"
    if done.failed and not bad:
        yield Row(PART, "tests/gpu", "failed", done.reason)
    elif not passed and not bad:
        yield Row(PART, "tests/gpu", "skipped", f"{counted}: {_why(left)}")
    else:
        yield Row(PART, "tests/gpu", "failed" if bad else "passed", counted)
    for case in bad:
        fault = case.find("failure") if case.find("failure") is not None else case.find("error")
        said = (fault.get("message") or "").splitlines() if fault is not None else []
        yield Row(PART, case.get("name") or "", "failed", said[0][:200] if said else "")


def _why(skipped: list[ElementTree.Element]) -> str:
    reasons = {one.get("message") or "" for case in skipped for one in case.iter("skipped")}
    return "; ".join(sorted(reasons)) or "there is no test"
