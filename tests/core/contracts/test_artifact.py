"""Which contents of an artifact.json make an artifact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from emberge import Artifact
from emberge.contracts import (
    AdapterFacts,
    BaseFacts,
    DataDetails,
    DataOrigin,
    Figure,
    HeatMap,
    MergeDetails,
    RowCounts,
    TrainingCost,
    TrainingDetails,
    TrainingWork,
    UsedRows,
)

SOUND = {
    "kind": "model",
    "size": 7,
    "parents": ["a"],
    "details": {"own": "facts"},
    "table": "t.md",
    "warnings": [],
    "files": {},
}


def test_a_records_fields_are_the_artifacts() -> None:
    assert Artifact.of(SOUND) == Artifact("model", 7, ("a",), {"own": "facts"}, table="t.md")
    assert Artifact.of({"kind": "data"}) == Artifact("data")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"},
        {"size": "7"},
        {"parents": [1]},
        {"details": ["table"]},
        {"base": {"name": "b", "hash": "0"}},
        {"details_type": "MadeUp"},
        {"details_type": "DataDetails", "details": {"changes": {"faq": {"rows": 1}}}},
        {"details_type": "DataDetails", "details": {"changes": {}, "chnages": {}}},
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused_by_name(change: dict[str, Any]) -> None:
    names = {"base": "base.hash", "details_type": "MadeUp|details.changes.faq.kept|details.chnages"}
    with pytest.raises(ValueError, match="|".join(names.get(key, key) for key in change)):
        Artifact.of({**SOUND, **change})


DETAILS = [
    TrainingDetails(
        datasets={"faq": UsedRows(rows=3, of=4, source=DataOrigin(licence="mit"))},
        seed=0,
        steps=2,
        last_loss=0.5,
        learning_rate=1e-3,
    ),
    MergeDetails(
        strategy=["ties", {"trim": {"density": 0.5}}],
        weights={"./a": 1.0},
        training_cost=TrainingCost(0.75, 3, 4),
    ),
    DataDetails(changes={"faq": RowCounts(rows=3, kept=2, dropped=1, notes={"far": 1})}),
    {"layers": [0, 2]},
]


@pytest.mark.parametrize("details", DETAILS, ids=lambda details: type(details).__name__)
def test_an_artifact_is_read_as_it_was_written(details: Any) -> None:
    artifact = Artifact(
        *("model", 7, ("a",), details),
        origin="changed",
        base=BaseFacts("a", "./a", "0a1b"),
        adapter=AdapterFacts(ranks={"query": 4}, errors={"query": 0.25}, whole=["norm"]),
        trainings={"tuned": TrainingWork(datasets={"faq": UsedRows(rows=1, of=2)})},
        figures=(Figure(heat_map=HeatMap(rows=["a"], columns=["b"], values=[[None]])),),
        unmet=("better than a",),
        note="1 of 1",
    )
    record = json.loads(json.dumps(artifact.to_record()))
    assert Artifact.of({**record, "files": {}}) == artifact
