"""A report tells everything on one page that needs nothing else and claims no more than it knows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from emberge_report.charts import thin
from emberge_report.report_data import read_curves

from tests.support import finished_run as runs
from tests.support.finished_run import BASE, SCORES, FinishedRun, parsed, report, words
from tests.support.json_files import changing


def test_many_tasks_are_folded_and_turned(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    folder = runs.scored(out, SCORES)
    with changing(folder / "scores.json") as found:
        names = [f"Task{i}" for i in range(40)]
        found["tasks"] = [{**found["tasks"][i % 3], "name": name} for i, name in enumerate(names)]
        found["values"] = {m: dict.fromkeys(names, 0.5) for m in SCORES}
        found["intervals"], found["comparisons"] = {}, []
    root = parsed(report(FinishedRun(out), "scores", base=None))
    assert "All 40 tasks" in [s.text for s in root.iter("summary")]
    _, table, *_ = root.iter("table")
    assert len(table.findall("thead/tr/th")) == 1 + len(SCORES)
    assert len(table.findall("tbody/tr")) == 40 + 3  # of means


def test_curves_outlive_a_kill(tmp_path: Path) -> None:
    rows = [
        {"name": "loss", "value": 3.0, "at": 1},
        {"name": "loss", "value": 2.0, "at": 2},
        {"name": "loss", "value": 2.5, "at": 2},
        {"name": "loss", "value": math.nan, "at": 3},
        {"name": "loss", "value": "high", "at": 4},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(lines + '{"name": "loss", "val')
    curve = read_curves(tmp_path / "metrics.jsonl")["loss"]
    assert [at for at, _ in curve] == [1, 2, 3]
    assert [value for _, value in curve[:2]] == [3.0, 2.5]
    assert [at for at, _ in thin(curve)] == [1, 2]
    assert read_curves(tmp_path / "nothing.jsonl") == {}


def test_a_long_training_is_drawn_with_few_points_and_all_that_was_logged(
    berts: list[Path], bert: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    folder = runs.trained(out, "long", berts[0], steps=20_000)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"name": "loss", "value": math.inf, "at": 7}))
    page = report(FinishedRun(out, outside={BASE: bert}), "long")
    assert "20,000" in words(page)
    assert len(page) < 120_000
    assert "Of long, logged losses that are not finite numbers are left out: 1." in words(page)
    assert not re.search(r'd="[^"]*(nan|inf)', page)
    assert "0.4" in words(page)
    short = runs.trained(out, "short", berts[0], steps=1) / "artifact.json"
    other = '"datasets": {"pairs": {"task": "sts", "rows": 1, "of": 1}, '
    short.write_text(short.read_text().replace('"datasets": {', other))
    page = report(FinishedRun(out, outside={BASE: bert}), "short")
    assert "Too few losses were logged for a chart." in words(page)
    assert "0.4" not in words(page), "losses of several kinds have no common scale"
