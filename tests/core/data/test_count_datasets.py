"""Data that a check counts are what a training loads, each file read once whatever share is taken of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataError, DataRef, DatasetInfo
from emberge.data import count_datasets, load_datasets
from emberge_data import JsonLines

PAIRS = [{"anchor": f"question {i}", "positive": f"answer {i}"} for i in range(9)]
SCORED = [{"anchor": "a", "positive": f"b{i}", "score": i} for i in range(6)]
LABELS = [{"text": f"text {i}", "label": "even" if i % 2 == 0 else "odd"} for i in range(8)]
TEXTS = [{"text": f"text {i}"} for i in range(3)]


class Counting(JsonLines):
    """A reader that counts the files that it has read."""

    files = 0

    def rows(self, path: Path) -> Iterator[Any]:
        Counting.files += 1
        return super().rows(path)


READER = Counting()


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def counted(path: Path, **options: Any) -> DatasetInfo:
    (info,) = count_datasets(
        [DataEntry(path=DataRef(str(path)), **options)],
        readers=[READER],
        resolve=lambda reference: Path(reference.text),
    )
    return info


def loaded(path: Path, **options: Any) -> DatasetInfo:
    (dataset,) = load_datasets(
        [DataEntry(path=DataRef(str(path)), **options)],
        readers=[READER],
        resolve=lambda reference: Path(reference.text),
    )
    return dataset.info


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (PAIRS, {}),
        (PAIRS, {"limit": 4, "weight": 2.5, "name": "few"}),
        (PAIRS, {"limit": 90}),
        (PAIRS, {"first": 5, "limit": 7}),
        (SCORED, {"limit": 2}),
        (SCORED, {"score_range": (0, 10), "negatives": "none"}),
        (LABELS, {}),
        (LABELS, {"limit": 3}),
        (LABELS, {"task": "text"}),
        (TEXTS, {}),
    ],
)
def test_what_is_counted_is_what_a_training_loads(
    rows: list[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", rows)
    info, expected = counted(path, **options), loaded(path, **options)
    assert info == expected
    assert (info.size, info.task, info.weight) == (expected.size, expected.task, expected.weight)
    assert (info.negatives, info.scores) == (expected.negatives, expected.scores)


@pytest.mark.parametrize(
    "rows",
    [
        [*PAIRS, {"anchor": "", "positive": "x"}, {"anchor": "y"}],
        [*LABELS, {"text": "alone", "label": "prime"}],
        LABELS[::2],
        [{"what": 1}],
        [],
    ],
)
def test_what_a_training_refuses_is_refused(rows: list[Any], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError) as counting:
        counted(path)
    with pytest.raises(DataError) as loading:
        loaded(path)
    assert str(counting.value) == str(loading.value)


def test_a_file_is_read_once_whatever_share_of_it_is_taken(tmp_path: Path) -> None:
    path, before = write(tmp_path / "rows.jsonl", PAIRS), Counting.files
    assert [counted(path, limit=n, weight=n + 1.0).size for n in (2, 4, 40)] == [2, 4, 9]
    assert counted(path, name="other", prompt="find: ").size == 9
    assert Counting.files == before + 1
    write(path, PAIRS[:3])
    assert counted(path).size == 3
    assert Counting.files == before + 2
