"""Files of shares of datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge import DataError
from emberge.training import FoundMixture


def write_shares(folder: Path, content: object) -> Path:
    folder.mkdir()
    (folder / "mixture.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ([], "it is no file of shares"),
        ({"shares": {"a": "x"}, "datasets": {"a": ["a"]}}, "it is no file of shares"),
        ({"shares": {"a": 0.5, "b": 0.4}, "datasets": {"a": ["a"], "b": ["b"]}}, "sum to 1"),
        ({"shares": {"a": 1.5, "b": -0.5}, "datasets": {"a": ["a"], "b": ["b"]}}, "share of 'b'"),
        ({"shares": {"a": float("nan")}, "datasets": {"a": ["a"]}}, "share of 'a'"),
        ({"shares": {"a": 1.0}, "datasets": {"b": ["b"]}}, "each share belongs to a group"),
        ({"shares": {}, "datasets": {}}, "each share belongs to a group"),
        ({"shares": {"a": 1.0}, "datasets": {"a": "ab"}}, "it is no file of shares"),
        ({"shares": {"a": 1.0}, "datasets": {"a": []}}, "each group has a dataset"),
        ({"shares": {"a": 10**400}, "datasets": {"a": ["a"]}}, "it is no file of shares"),
        (
            {"shares": {"a": 0.5, "b": 0.5}, "datasets": {"a": ["x"], "b": ["x"]}},
            "each dataset belongs to one group",
        ),
    ],
)
def test_a_file_without_sound_shares_is_refused(
    tmp_path: Path, content: object, fault: str
) -> None:
    with pytest.raises(DataError, match=fault):
        FoundMixture.read(write_shares(tmp_path / "found", content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file of shares"):
        FoundMixture.read(tmp_path)
