"""Catalogues that steps write are read as the same examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataRef
from emberge.data import StoredDataset, load_datasets
from emberge_data import JsonLines
from emberge_data.written_sets import write_catalogue

from tests.support.media_models import drawing

ROWS: dict[str, list[dict[str, Any]]] = {
    "find": [
        {"query": "a", "pos": ["b", "c"], "neg": ["d"]},
        {"query": "e", "pos": ["f"], "neg": []},
    ],
    "alike": [
        {"sentence1": "a", "sentence2": "b", "score": 5},
        {"sentence1": "c", "sentence2": "d", "score": 0},
    ],
    "taught": [{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [0.5], "neg_scores": [0]}],
    "kinds": [{"text": f"t{i}", "label": str(i % 2)} for i in range(4)],
    "plain": [{"text": "one"}, {"text": "zwei"}],
}


def loaded(path: Path, **options: Any) -> list[StoredDataset]:
    entry = DataEntry(path=DataRef(str(path)), **options)
    return load_datasets([entry], readers=[JsonLines()], resolve=lambda ref: Path(ref.text))


@pytest.mark.parametrize("name", ROWS)
def test_a_written_set_is_read_as_the_same_examples(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    facts = {
        "language": "de",
        "instruction": "Find it",
        "prompt": "Do: {instruction} ",
        "weight": 2.0,
        "negatives": "hard_only",
        "ind_tasks": ("one",),
    }
    (before,) = loaded(path, **facts)
    examples = [before[row] for row in range(len(before))]
    (tmp_path / "out").mkdir()
    write_catalogue(tmp_path / "out", [(name, before, examples)])
    (after,) = loaded(tmp_path / "out")
    assert [after[row] for row in range(len(after))] == examples
    assert after.info == before.info
    assert (after.prompt, after.symmetric) == (before.prompt, before.symmetric)
    assert after.prompt == "Do: Find it "
    assert (after.entry.language, after.entry.ind_tasks) == ("de", ("one",))


def test_a_set_without_rows_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "find.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS["find"]))
    (before,) = loaded(path)
    (tmp_path / "out").mkdir()
    write_catalogue(tmp_path / "out", [("a/b", before, [before[0]]), ("c", before, [])])
    assert [one.info.name for one in loaded(tmp_path / "out")] == ["a/b"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0-a-b.jsonl", "datasets.yaml"]


def test_written_sets_refer_to_the_same_media(tmp_path: Path) -> None:
    drawing(0).save(tmp_path / "cat.png")
    row = {"query": {"parts": ["is ", {"image": "cat.png"}]}, "pos": [{"image": "cat.png"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (before,) = loaded(tmp_path / "rows.jsonl")
    (tmp_path / "out").mkdir()
    write_catalogue(tmp_path / "out", [("again", before, [before[0]])])
    (after,) = loaded(tmp_path / "out")
    assert after[0] == before[0]
