"""What each room's tests cost: `python -m tests.support.room_seconds QUICK.xml [SLOW.xml]`.

Reads pytest's reports (`--junitxml`) and prints a Markdown table: the folder, and of each report how many
tests ran and the seconds that they and their fixtures took.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

Costs = dict[str, tuple[int, float]]


def room(classname: str) -> str:
    """Return the room of a test's dotted module: `tests/core/merging`, `tests/house`."""
    parts = classname.split(".")
    folders = [part for part in parts[:3] if not part.startswith("test_")]
    return "/".join(folders if folders[1:2] in (["core"], ["plugins"]) else folders[:2])


def costs(report: str) -> Costs:
    """Return each room's number of tests that were not skipped, and the seconds of all."""
    found: Costs = defaultdict(lambda: (0, 0.0))
    for case in ElementTree.parse(report).iter("testcase"):
        name = room(case.get("classname", ""))
        tests, seconds = found[name]
        ran = case.find("skipped") is None
        found[name] = (tests + ran, seconds + float(case.get("time", 0)))
    return found


def table(reports: Sequence[Costs]) -> Iterator[str]:
    """Yield the table's lines, the rooms by name and their sum."""
    kinds = ("quick", "slow")[: len(reports)]
    yield "| room | " + " | ".join(f"{kind} tests | s" for kind in kinds) + " |"
    yield "|---|" + "--:|--:|" * len(reports)
    for name in sorted({name for report in reports for name in report}):
        yield _row(name, [report.get(name, (0, 0.0)) for report in reports])
    sums = [(sum(n for n, _ in r.values()), sum(s for _, s in r.values())) for r in reports]
    yield _row("all", sums)


def _row(name: str, cells: Sequence[tuple[int, float]]) -> str:
    return f"| {name} | " + " | ".join(f"{n} | {s:,.0f}" for n, s in cells) + " |"


if __name__ == "__main__":
    print(*table([costs(report) for report in sys.argv[1:3]]), sep="\n")
