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


ROWS = pairs(40)
PASSAGES = {row["pos"][0] for row in ROWS}


@pytest.fixture(scope="module")
def made(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one recipe with every kind of step."""
    folder = tmp_path_factory.mktemp("taught")
    plain = {"data": write(folder / "rows.jsonl", ROWS)}
    everything = [{**row, "neg": sorted(PASSAGES), "neg_scores": [0.5] * 40} for row in ROWS]
    given = {"data": write(folder / "given.jsonl", everything)}
    mine = "mine_hard_negatives"
    steps: Steps = {
        "plain": (mine, {**plain, "count": 4, "margin": None}),
        "margin": (mine, {**plain, "count": 4, "margin": 0.9}),
        "allowed": (mine, {**plain, "count": 39, "margin": 0.99}),
        "filtered": ("filter_negatives", {**given, "margin": 0.99}),
    }
    path = recipe(folder, str(bert), steps)
    assert main(["run", str(path), "--out", str(folder / "out"), "--quiet"]) == 0
    return folder / "out"


def rows_of(folder: Path) -> Rows:
    (file,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_mined_negatives_are_other_passages_of_the_set_and_are_described(made: Path) -> None:
    found = rows_of(made / "plain")
    assert [(row["query"], row["pos"]) for row in found] == [
        (row["query"], row["pos"]) for row in ROWS
    ]
    for row in found:
        assert len(set(row["neg"])) == 4
        assert set(row["neg"]) <= PASSAGES - set(row["pos"])
    table = (made / "plain" / "changes.md").read_text("utf-8")
    (sentence,) = [one for one in table.splitlines() if one.startswith("rows: ")]
    assert "160 negatives for 40 of 40 queries" in sentence
    assert "`changes.json`" in table
    artifact = json.loads((made / "margin" / "artifact.json").read_text("utf-8"))
    (sentence,) = artifact["details"]["sentences"]
    assert sentence in (made / "margin" / "changes.md").read_text("utf-8")


def test_filtered_negatives_are_those_that_mining_would_allow(made: Path) -> None:
    found, allowed = rows_of(made / "filtered"), rows_of(made / "allowed")
    assert 0 < sum(len(row["neg"]) for row in found) < 39 * 40
    for row, mined in zip(found, allowed, strict=True):
        assert set(row["neg"]) == set(mined["neg"])
        assert len(row.get("neg_scores", ())) == len(row["neg"])


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
