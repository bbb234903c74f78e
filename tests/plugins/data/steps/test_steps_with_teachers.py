"""Steps in which teachers judge, run and checked from recipes on a tiny real encoder."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main

from tests.support.step_reports import assert_never_decreases, record_reports
from tests.support.tiny import WORDS

Rows = list[dict[str, Any]]
Steps = Mapping[str, tuple[str, dict[str, Any]]]


def pairs(count: int, seed: int = 0) -> Rows:
    """Rows of a query and its positive, all texts different."""
    draw = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < 2 * count:
        texts[" ".join(draw.choices(WORDS, k=draw.randint(3, 8)))] = None
    found = list(texts)
    return [{"query": q, "pos": [p]} for q, p in zip(found[::2], found[1::2], strict=True)]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def recipe(folder: Path, teacher: Any, steps: Steps) -> Path:
    """A recipe with a line of its own for the `data` of each step."""
    made = {
        name: {kind: {**options, "teacher": teacher}} for name, (kind, options) in steps.items()
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({"seed": 3, "steps": made}, indent=1), "utf-8")
    return path


def test_progress_is_by_set_and_never_decreases(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = record_reports(monkeypatch, "made")
    data = [write(tmp_path / f"{name}.jsonl", pairs(20, n)) for n, name in enumerate("ab")]
    path = recipe(tmp_path, str(bert), {"made": ("consistency_filter", {"data": data})})
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
    assert_never_decreases(reports, 2, "stages")
    assert reports[-1][0] == 2
    notes = [note for *_, note in reports]
    assert "set 1 of 2: a" in notes
    assert "set 2 of 2: b" in notes


# ── before any work ─────────────────────────────────────────────────────────────────────────────────

WRONG = [
    ("mine_hard_negatives", {"count": 3, "range": [3, 4]}, "fewer ranks than count"),
    ("mine_hard_negatives", {"corpus": "./nowhere.jsonl"}, "nowhere.jsonl"),
]
WITHOUT_POSITIVES: list[tuple[str, Rows]] = [
    ("text", [{"text": "bank card"}, {"text": "new table"}]),
    ("classification", [{"text": w, "label": w[0]} for w in ("bank", "bad", "table", "to")]),
    ("sts", [{"query": "bank", "pos": ["card"], "pos_scores": [1]}] * 2),
]


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `check` has written against a recipe, on one line."""
    assert main(["check", str(path)]) == 2
    written = capsys.readouterr()
    return " ".join((written.out + written.err).split())


@pytest.mark.parametrize(("kind", "options", "named"), WRONG)
def test_wrong_options_are_found_before_work_starts(
    kind: str,
    options: dict[str, Any],
    named: str,
    bert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write(tmp_path / "rows.jsonl", pairs(20))
    found = refused(
        recipe(tmp_path, str(bert), {"made": (kind, {"data": data, **options})}), capsys
    )
    assert "recipe.yaml:" in found
    assert named in found


def test_sets_without_positives_are_found_before_work_starts(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {}
    for task, rows in WITHOUT_POSITIVES:
        data = {"path": write(tmp_path / f"{task}_rows.jsonl", rows), "task": task}
        steps[task] = (
            "filter_negatives",
            {"data": {**data, **({"score_range": [0, 1]} if task == "sts" else {})}},
        )
    found = refused(recipe(tmp_path, str(bert), steps), capsys)
    for task, _ in WITHOUT_POSITIVES:
        assert f"dataset '{task}_rows'" in found
    assert found.count("leave it out") == 3
