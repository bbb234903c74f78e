"""The interaction study's worked numbers, and the size of its samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from emberge import DataError
from emberge_boom.interactions import choose_sample_size
from emberge_boom.study import STUDY_FILE, DatasetPair, read_study, write_study

from tests.plugins.boom.studied import NAMES, worked


def test_worked_distances_as_the_paper_prints_them() -> None:
    study = worked()
    found = [one.distance for one in study.dataset_pairs]
    assert found == pytest.approx([0.04, 0.12, 0.05, 0.10, 0.05, 1.05])
    assert [one.alone for one in study.dataset_pairs] == pytest.approx(
        [1.1, 1.5, 0.9, 1.6, 1.0, 1.4]
    )
    assert study.dataset_pairs[0].delta == pytest.approx(-0.044)


@pytest.mark.parametrize(
    ("threshold", "clusters"),
    [
        (0.03, {("a",), ("b",), ("c",), ("d",)}),
        (0.045, {("a", "b"), ("c",), ("d",)}),
        (0.15, {("a", "b", "d"), ("c",)}),
        (0.2, {("a", "b", "d"), ("c",)}),
        (1.0, {NAMES}),
    ],
)
def test_clusters_are_those_of_average_linkage_by_hand(
    threshold: float, clusters: set[Any]
) -> None:
    study = worked()
    assert study.heights == pytest.approx([0.04, 0.05, 0.423333], abs=1e-6)
    assert set(study.find_clusters(distance=threshold)) == clusters


def test_the_printed_distance_jumps_where_helping_turns_into_harm() -> None:
    helped, equal, harmed = (
        DatasetPair(("a", "b"), joint, 1.0).distance for joint in (0.999, 1.0, 1.001)
    )
    assert helped == pytest.approx(0.001)
    assert (equal, harmed) == (1.0, pytest.approx(1.001))


def test_the_most_conflicting_pairs_come_first() -> None:
    conflicts = worked().conflicts
    assert conflicts[0].names == ("c", "d")
    assert conflicts[-1].names == ("a", "c")
    deltas = [one.delta for one in conflicts]
    assert deltas == sorted(deltas, reverse=True)


def test_losses_that_are_not_above_zero_have_no_distance() -> None:
    with pytest.raises(DataError, match=r"of a and b alone is 0; .* need losses above 0"):
        dataclasses.replace(worked(), alone=dict.fromkeys(NAMES, 0.0))


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    study = worked()
    write_study(tmp_path, study)
    again = read_study(tmp_path)
    assert again == study
    assert again.conflicts == study.conflicts
    told = json.loads((tmp_path / STUDY_FILE).read_text())
    assert told["tree"] == again.tree.tolist()
    first = again.conflicts[0]
    assert told["pairs"][0] == {
        **{"pair": ["c", "d"], "joint": first.joint, "alone": first.alone},
        **{"delta": first.delta, "distance": first.distance},
    }


def test_every_number_of_clusters_is_told_with_its_threshold() -> None:
    cuts = worked().list_cuts()
    assert [len(clusters) for _, clusters in cuts] == [1, 2, 3, 4]
    assert [level for level, _ in cuts] == pytest.approx([0.423333, 0.05, 0.04, 0], abs=1e-6)


def test_samples_are_as_large_as_the_smallest_or_as_given() -> None:
    sizes = {"a": 30, "b": 20, "c": 20}
    assert choose_sample_size(None, sizes) == 20
    assert choose_sample_size(12, sizes) == 12
    with pytest.raises(DataError, match="'b' has 20; write rows: 20, or leave that dataset out"):
        choose_sample_size(21, sizes)
