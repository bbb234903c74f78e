"""`costs.json`: measured costs by model content, beside scores that stay the same bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from emberge import DataError
from emberge.evaluating import (
    Scores,
    Task,
    read_costs,
    read_scores,
    time_call,
    write_costs,
    write_scores,
)

from tests.support.encoding_costs import COST

SCORES = Scores(
    fingerprints={"a": "1" * 8, "b.seed=1": "2" * 8, "b.seed=2": "3" * 8, "best": "1" * 8},
    tasks=(Task("code"),),
    values={name: {"code": 0.5} for name in ("a", "b.seed=1", "b.seed=2", "best")},
    headroom=("best",),
)


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    costs = {"1" * 8: COST, "2" * 8: replace(COST, milliseconds=0.2)}
    write_costs(tmp_path, costs)
    assert read_costs(tmp_path) == costs


def test_a_folder_without_costs_has_none(tmp_path: Path) -> None:
    assert read_costs(tmp_path) == {}


def test_models_and_arms_get_the_cost_of_their_content(tmp_path: Path) -> None:
    pooled = replace(
        SCORES,
        fingerprints={"a": "", "b": ""},
        values={name: {"code": 0.5} for name in ("a", "b")},
        means={name: {"task": 0.5} for name in ("a", "b")},
        members={"a": {"1": "a"}, "b": {"seed=1": "b.seed=1", "seed=2": "b.seed=2"}},
        headroom=(),
    )
    write_scores(tmp_path, replace(SCORES, pooled=pooled))
    content = (tmp_path / "scores.json").read_bytes()
    second = replace(COST, milliseconds=0.2)
    write_costs(tmp_path, {"1" * 8: COST, "2" * 8: second, "3" * 8: COST})
    found = read_scores(tmp_path)
    assert found.encoding_costs == {"a": COST, "b.seed=1": second, "b.seed=2": COST}
    assert found.pooled is not None
    assert found.pooled.encoding_costs == {"a": COST, "b": second}
    assert (tmp_path / "scores.json").read_bytes() == content


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("milliseconds", 0.0),
        ("milliseconds", float("nan")),
        ("texts_per_second", float("inf")),
        ("cpu_milliseconds", -1),
        ("threads", True),
        ("threads", 1.5),
        ("dimension", 10**400),
        ("machine", 3),
        ("milliseconds", "1.5"),
        ("colour", 1),
    ],
)
def test_what_cannot_be_measured_is_refused(option: str, value: Any, tmp_path: Path) -> None:
    entry = {**asdict(COST), option: value}
    (tmp_path / "costs.json").write_text(json.dumps({"format": 1, "costs": {"1": entry}}))
    with pytest.raises(DataError, match=r"costs\.json.*run the evaluation again"):
        read_costs(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"costs": []}', '{"costs": {"1": []}}', "{}"])
def test_a_file_of_another_form_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(content)
    with pytest.raises(DataError, match=r"costs\.json"):
        read_costs(tmp_path)


def test_a_call_that_does_nothing_took_some_time() -> None:
    called: list[int] = []
    elapsed = time_call(lambda: called.append(1))
    assert called == [1]
    assert elapsed.wall > 0
    assert elapsed.cpu > 0
