"""Which contents of an artifact.json make an artifact."""

from __future__ import annotations

from typing import Any

import pytest
from emberge import Artifact

SOUND = {
    "kind": "model",
    "size": 7,
    "parents": ["a"],
    "details": {"table": "t.md"},
    "warnings": [],
    "files": {},
}


def test_a_records_fields_are_the_artifacts() -> None:
    assert Artifact.of(SOUND) == Artifact("model", 7, ("a",), {"table": "t.md"}, ())
    assert Artifact.of({"kind": "data"}) == Artifact("data")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"},
        {"size": -1},
        {"parents": [1]},
        {"details": ["table"]},
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^it"):
        Artifact.of({**SOUND, **change})
