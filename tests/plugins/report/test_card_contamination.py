"""A card shows what of the tests the data behind the model had, and of no other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emberge.documents import TextTable
from emberge.results import OutFolder
from emberge_report.card.card_contamination import contamination_behind, contamination_section

COUNTS = {
    **{"queries": 300, "queries_found": 12, "documents": 700, "documents_found": 3},
    **{"rows_before": 20, "rows_dropped": 15, "rows_changed": 5, "rows_after": 0},
}


def finished(out: Path, step: str, inputs: list[str], **details: Any) -> Path:
    """A finished step with an artifact, and the link that leads to it."""
    folder = out / f"{step}-0"
    folder.mkdir(parents=True)
    named = [{"reference": f"${name}", "name": name, "content": "0"} for name in inputs]
    record = {"kind": "data", "details": details, "inputs": named}
    (folder / "artifact.json").write_text(json.dumps(record))
    OutFolder(out).link(step).symlink_to(folder.name)
    return folder


def test_the_record_is_found_through_later_steps_and_trainings_alone(tmp_path: Path) -> None:
    record = {"tests": {"nq": COUNTS}, "words": 13}
    finished(tmp_path, "clean", [], contamination=record)
    finished(tmp_path, "unused", [], contamination={"tests": {"other": COUNTS}, "words": 13})
    finished(tmp_path, "mined", ["clean"])
    finished(tmp_path, "member", ["mined+acme/adapter"])
    merged = finished(tmp_path, "merged", ["member.checkpoints", "gone"])
    (found,) = contamination_behind(merged, tmp_path)
    assert (found.step, dict(found.tests)) == ("clean", {"nq": COUNTS})
    section = contamination_section([found])
    assert section is not None
    assert section.title == "Test texts in the training data"
    explained, table = section.passages
    assert isinstance(table, TextTable)
    head = ("Test", "Test texts", "In the data before", "Rows with them before", "After")
    assert tuple(table.head) == head
    assert table.rows == [["nq", "1,000", "15", "20", "0"]]
    assert "13 words in a row" in str(explained)


def test_each_step_that_looked_has_its_own_words_and_table(tmp_path: Path) -> None:
    finished(tmp_path, "first", [], contamination={"tests": {"nq": COUNTS}})
    finished(
        tmp_path, "second", [], contamination={"tests": {"sts": {}, "msmarco": {"queries": 2}}}
    )
    finished(tmp_path, "idle", [], contamination={"tests": {}})
    merged = finished(tmp_path, "merged", ["first", "second", "idle"])
    section = contamination_section(contamination_behind(merged, tmp_path))
    assert section is not None
    told, table, told_too, other = section.passages
    assert str(told).startswith("Step first looked")
    assert str(told_too).startswith("Step second looked")
    assert "in a row" not in str(told)
    assert isinstance(table, TextTable)
    assert isinstance(other, TextTable)
    assert [row[0] for row in table.rows] == ["nq"]
    assert other.rows == [["sts", "0", "0", "0", "0"], ["msmarco", "2", "0", "0", "0"]]


def test_data_that_nobody_looked_at_has_no_section(tmp_path: Path) -> None:
    raw = finished(tmp_path, "raw", [])
    assert contamination_behind(raw, tmp_path) == ()
    assert contamination_section(()) is None
