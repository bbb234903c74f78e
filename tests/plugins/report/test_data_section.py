"""Steps that drop or change rows are shown: counts by set, reasons, and examples to open."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from emberge import Artifact, DataError
from emberge_report.page.data_section import data_section, read_changes

SETS = {
    "find": {
        "rows": 1200,
        "kept": 1100,
        "dropped": 100,
        "changed": 3,
        "notes": {"too <far>": 100, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1},
        "examples": [
            {"row": 7, "note": "too <far>", "before": {"anchor": "A & B", "positives": ["c"]}},
            {"row": 1007, "note": "b", "before": {"anchor": "x"}, "after": {"anchor": "y"}},
        ],
    },
    "clean": {"rows": 1, "kept": 1, "dropped": 0, "changed": 0, "notes": {}, "examples": []},
}


def read(folder: Path, text: str | None = None) -> ElementTree.Element:
    if text is not None:
        (folder / "changes.json").write_text(text)
    counts = {name: {**one, "examples": None} for name, one in SETS.items()}
    details = {"changes": counts, "examples": "changes.json", "sentences": ["9 groups <joined>"]}
    artifact = Artifact(kind="data", details=details)
    found = read_changes("filter", folder, artifact)
    assert found is not None
    return ElementTree.fromstring(data_section([found]))


def test_counts_and_examples_are_tables(tmp_path: Path) -> None:
    section = read(tmp_path, json.dumps(SETS))
    counts, examples = section.iter("table")
    rows = [["".join(cell.itertext()) for cell in row] for row in counts.iter("tr")]
    assert rows[1][:5] == ["find", "1,200", "1,100", "100", "3"]
    assert rows[1][5].startswith("too <far> (100); b (1);")
    assert rows[1][5].endswith("…")
    assert rows[2] == ["clean", "1", "1", "0", "0", "–"]
    shown = [["".join(cell.itertext()) for cell in row] for row in examples.iter("tr")]
    assert shown[1] == ["7", "too <far>", "anchor A & Bpositive c", "dropped"]
    assert shown[2] == ["1,007", "b", "anchor x", "anchor y"]
    assert [line.text for line in section.iter("p")] == ["9 groups <joined>"]


def test_other_artifacts_have_no_such_section(tmp_path: Path) -> None:
    assert read_changes("train", tmp_path, Artifact(kind="model")) is None


@pytest.mark.parametrize("text", [None, "no json"])
def test_examples_that_cannot_be_read_name_the_step(tmp_path: Path, text: str | None) -> None:
    with pytest.raises(DataError, match=r"'filter': changes\.json"):
        read(tmp_path, text)
