"""The student of an adaptation: what `--small` may be, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError, RecipeError
from emberge.model_folder import write_static_model
from emberge_adapt import plan_student, read_small
from numpy import ones


def plan(kind: str | int, folder: Path, **changes: Any) -> Any:
    options = {"rows": 1000, "documents": 0, "effort": "normal", **changes}
    return plan_student(kind, "me/base", folder, **options)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, None), (False, None), (True, "half"), ("static", "static"), ("3", 3), (3, 3)],
)
def test_a_student_is_layers_or_a_word(value: Any, kind: Any) -> None:
    assert read_small(value) == kind


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "1e1", "pairs.csv", "", 0, -2, "١", "9" * 99])
def test_no_other_value_is_a_student(value: Any) -> None:
    with pytest.raises(RecipeError, match=r"--small static"):
        read_small(value)


def test_by_default_it_is_half_of_the_layers(bert: Path) -> None:
    student = plan("half", bert)
    assert (student.layers, student.of_layers) == (1, 3)
    assert plan(2, bert).layers == 2
    assert plan("static", bert).layers is None
    with pytest.raises(RecipeError, match=r"me/base has 3 layers.*name fewer"):
        plan(3, bert)


def test_few_texts_are_read_several_times_and_many_documents_up_to_a_limit(bert: Path) -> None:
    assert plan(1, bert, rows=64).epochs == 20
    assert plan(1, bert, rows=3200).epochs == 4
    assert plan(1, bert, rows=3200, effort="quick").epochs == 2
    assert plan(1, bert, rows=10**6).epochs == 1
    many = plan(1, bert, documents=10**7)
    assert (many.documents, many.epochs) == (20_000, 1)


@pytest.mark.parametrize("kind", ["half", "static", 1])
def test_a_static_model_has_no_smaller_one(kind: str | int, tmp_path: Path) -> None:
    write_static_model(tmp_path, ones((3, 2), "f4"), "{}", {}, {})
    with pytest.raises(CheckpointError, match=r"me/base is a static model.*leave --small out"):
        plan(kind, tmp_path)
