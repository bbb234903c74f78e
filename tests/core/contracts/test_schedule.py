"""Numbers that vary over depth, tensors and models."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
from emberge import PerModel, PerTensor
from emberge.contracts.schedule import FilteredValue

NAME = "layers.0.mlp.up_proj.weight"


def test_a_list_is_interpolated_over_depth() -> None:
    schedule = PerTensor([0.0, 1.0, 0.0])
    # Five layers: x = (3 - 1) · l / (5 - 1) = 0, 0.5, 1, 1.5, 2.
    values = [schedule.at(NAME, layer / 4) for layer in range(5)]
    assert values == [0.0, 0.5, 1.0, 0.5, 0.0]


def test_the_first_filter_that_fits_wins() -> None:
    schedule = PerTensor(
        [{"filter": "mlp", "value": 0.1}, {"filter": "up_proj", "value": 0.2}, {"value": [0, 1]}]
    )
    assert schedule.at(NAME, 0.5) == 0.1
    assert schedule.at("layers.0.up_proj", 0.5) == 0.2
    assert schedule.at("norm", 0.5) == 0.5
    assert schedule.filters == ("mlp", "up_proj")


def test_where_no_filter_fits_the_default_holds_or_it_is_an_error() -> None:
    schedule = PerModel([{"filter": "mlp", "value": 0.1}])
    assert schedule.at("norm", 0.0, default=0.4) == 0.4
    with pytest.raises(ValueError, match="no filter fits the tensor 'norm'; end the list"):
        schedule.at("norm", 0.0)


def test_a_star_is_every_tensor() -> None:
    schedule = PerTensor([{"filter": "*", "value": 2}])
    assert schedule.at("anything", 0.0) == 2
    assert schedule.filters == ()
    assert schedule == PerTensor(2)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2, "2 lies outside 0 to 1"),
        ([0.5, -1], "-1 lies outside 0 to 1"),
        ([{"filter": "mlp", "value": 3}], "3 lies outside 0 to 1"),
        ("0.5", "needs a number"),
        ([], "needs a number"),
        ([0.1, "x"], "needs numbers"),
        (math.nan, "needs a number"),
        ([{"filter": "mlp"}], "an entry has 'value'"),
        ([{"filter": 3, "value": 0.1}], "a part of a tensor's name, not 3"),
        ([{"value": 0.1}, {"filter": "mlp", "value": 0.2}], "for all tensors stands last"),
    ],
)
def test_what_is_no_schedule_is_refused(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PerTensor(value, within=(0, 1))  # type: ignore[arg-type]


def test_plain_returns_the_value_of_the_recipe() -> None:
    written = [{"filter": "mlp", "value": [0.1, 0.2]}, {"value": 0.5}]
    assert PerTensor(written).plain() == written
    assert PerTensor(PerTensor([0.1, 0.2])).plain() == [0.1, 0.2]
    assert PerTensor([FilteredValue(0.5, "mlp")]).plain() == [{"filter": "mlp", "value": 0.5}]


def test_schedules_can_be_copied_and_pickled() -> None:
    schedule = PerModel([0.1, 0.9], within=(0, 1))
    for twin in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert twin == schedule
        assert twin.within == (0, 1)
