"""Data entries are split into their sets, by name, before any row is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import DataEntry, DataError, DataRef
from emberge_boom.interactions import split_by_set


def entry(text: str, folder: Path, **more: object) -> DataEntry:
    return DataEntry(path=DataRef(text, folder), **more)  # type: ignore[arg-type]


def test_a_catalogue_is_split_into_its_sets_if_they_are_known(tmp_path: Path) -> None:
    sets = "".join(f"- {{name: {n}, path: {n}.jsonl}}\n" for n in ("red", "blue"))
    (tmp_path / "datasets.yaml").write_text(f"train:\n{sets}")
    for text in ("datasets.yaml", "."):
        found = split_by_set([entry(text, tmp_path, limit=7)])
        assert list(found) == ["blue", "red"]
        assert found["red"] == entry(text, tmp_path, limit=7, only=("red",))
    assert list(split_by_set([entry("datasets.yaml", tmp_path, only=("red",))])) == ["red"]
    with pytest.raises(DataError, match=r"the sets that \$corpus will hold .* under `only`"):
        split_by_set([entry("$corpus", tmp_path)])
    assert list(split_by_set([entry("$corpus", tmp_path, only=("b", "a"))])) == ["a", "b"]


def test_entries_go_by_their_names_or_numbers(tmp_path: Path) -> None:
    given = [
        DataEntry(hub="me/questions"),
        entry("pairs.jsonl.gz", tmp_path),
        entry("b.csv", tmp_path, name="my set"),
        *(entry(f"{folder}/x.jsonl", tmp_path) for folder in "ab"),
    ]
    assert list(split_by_set(given)) == ["my-set", "pairs", "questions", "x-0", "x-1"]
    assert split_by_set(given) == split_by_set(given[::-1])
