from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataRef
from emberge.data import StoredDataset, load_datasets, write_catalogue
from emberge_data import JsonLines

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
    counts = write_catalogue(tmp_path / "out", [(name, before, examples)])
    assert counts == {name: len(ROWS[name])}
    (after,) = loaded(tmp_path / "out")
    assert [after[row] for row in range(len(after))] == examples
    assert after.info == before.info
    assert (after.prompt, after.symmetric) == (before.prompt, before.symmetric)
    assert after.prompt == "Do: Find it "
    assert (after.entry.language, after.entry.ind_tasks) == ("de", ("one",))


def test_a_set_without_rows_is_counted_and_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "find.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS["find"]))
    (before,) = loaded(path)
    (tmp_path / "out").mkdir()
    counts = write_catalogue(tmp_path / "out", [("a/b", before, [before[0]]), ("c", before, [])])
    assert counts == {"a/b": 1, "c": 0}
    assert [one.info.name for one in loaded(tmp_path / "out")] == ["a/b"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0-a-b.jsonl", "datasets.yaml"]
