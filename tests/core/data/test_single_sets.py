"""Entries of data become one entry a dataset, in an order that the recipe's does not change."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import DataEntry, DataError, DataRef
from emberge.data import one_by_one


def entry(text: str, folder: Path, **more: object) -> DataEntry:
    return DataEntry(path=DataRef(text, folder), **more)  # type: ignore[arg-type]


def test_a_catalogue_is_split_into_its_sets(tmp_path: Path) -> None:
    sets = "".join(f"- {{name: {n}, path: {n}.jsonl}}\n" for n in ("red", "blue"))
    (tmp_path / "datasets.yaml").write_text(f"train:\n{sets}")
    for text in ("datasets.yaml", "."):
        found = one_by_one([entry(text, tmp_path, limit=7)])
        assert list(found) == ["blue", "red"]
        assert found["red"] == entry(text, tmp_path, limit=7, only=("red",))
    assert list(one_by_one([entry("datasets.yaml", tmp_path, only=("red",))])) == ["red"]


def test_files_and_hub_sets_go_by_their_names(tmp_path: Path) -> None:
    given = [
        DataEntry(hub="me/questions"),
        entry("pairs.jsonl.gz", tmp_path),
        entry("b.csv", tmp_path, name="my set"),
    ]
    assert list(one_by_one(given)) == ["my-set", "pairs", "questions"]
    assert one_by_one(given) == one_by_one(given[::-1])


def test_equal_names_are_told_apart_so_that_loading_can_refuse_them(tmp_path: Path) -> None:
    given = [entry("a/x.jsonl", tmp_path), entry("b/x.jsonl", tmp_path)]
    assert list(one_by_one(given)) == ["x-0", "x-1"]


def test_sets_that_are_yet_to_be_made_need_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the sets that \$corpus will hold .* under `only`"):
        one_by_one([entry("$corpus", tmp_path)])
    assert list(one_by_one([entry("$corpus", tmp_path, only=("b", "a"))])) == ["a", "b"]
