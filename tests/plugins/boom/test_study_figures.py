"""A study's drawings hold its numbers, in words too."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from emberge import Artifact
from emberge_boom.study.study import Study
from emberge_boom.study.study_figures import figures_of
from emberge_report import read_figures

from tests.plugins.boom.studied import worked


def many(count: int, name: str = "a rather long name of a dataset") -> Study:
    names = [f"{name} {i}" for i in range(count)]
    return Study(
        names=tuple(names),
        tasks=dict.fromkeys(names, "sts"),
        sizes=dict.fromkeys(names, 9),
        rows=3,
        singles={one: 1.0 + i / 10 for i, one in enumerate(names)},
        joint={pair: 1.0 + 0.01 * i for i, pair in enumerate(itertools.combinations(names, 2))},
    )


def dendrogram(study: Study) -> str:
    """The tree of a study as a report draws it."""
    _, figure = figures_of(study)
    (drawn,) = read_figures("study", Artifact("file", details={"figures": [figure]}))
    return drawn.drawing


def texts(drawing: str) -> list[str]:
    return ["".join(e.itertext()) for e in ElementTree.fromstring(drawing).iter("text")]


def test_the_heat_map_has_the_change_of_every_pair() -> None:
    """Differences of losses in the order of the tree, nothing on the diagonal; a report draws it."""
    study = worked()
    figure, _ = figures_of(study)
    names = figure["heat_map"]["rows"]
    assert names == figure["heat_map"]["columns"]
    assert names == figures_of(study)[1]["tree"]["names"]
    found = {
        (a, b): value
        for a, row in zip(names, figure["heat_map"]["values"], strict=True)
        for b, value in zip(names, row, strict=True)
    }
    assert all((found[a, b] is None) == (a == b) for a, b in found)
    assert all(found[pair] == found[pair[::-1]] for pair in found)
    assert found["a", "c"] == pytest.approx(1.32 - 1.5)
    assert found["c", "d"] == pytest.approx(1.47 - 1.4)
    (drawn,) = read_figures("study", Artifact("file", details={"figures": [figure]}))
    assert drawn.drawing.count(">\N{MINUS SIGN}0.180<") == 3, "twice, and on the scale"
    assert list(drawn.rows[0]) == ["c + d", "1.4700", "1.4000", "+0.0700", "1.0500"]


def test_the_tree_has_a_union_at_each_height() -> None:
    drawing = dendrogram(worked())
    assert {"0.04", "0.05", "0.423"} <= set(texts(drawing))
    paths = [str(e.get("d")) for e in ElementTree.fromstring(drawing).iter("path")]
    places = [float(p.partition("H")[2].partition("V")[0]) for p in paths]
    assert places == sorted(places)
    assert (places[1] - places[0]) / (places[2] - places[0]) == pytest.approx(
        0.01 / 0.383333, abs=1e-3
    )


def test_branches_do_not_cross() -> None:
    tree = figures_of(many(12))[1]["tree"]
    assert len(set(tree["names"])) == 12
    below = [[number] for number in range(12)]
    for first, second, _ in tree["unions"]:
        below.append(sorted(below[first] + below[second]))
        assert below[-1] == list(range(below[-1][0], below[-1][-1] + 1))


@pytest.mark.parametrize("count", [2, 3, 40])
def test_the_tree_fits_any_number_of_datasets(count: int) -> None:
    root = ElementTree.fromstring(dendrogram(many(count)))
    width, height = (float(v) for v in str(root.get("viewBox")).split()[2:])
    assert root.get("role") == "img"
    assert root.get("aria-label")
    words = [element for element in root.iter("text") if element.get("x")]
    assert len(words) > count
    assert all(0 <= float(str(e.get("x"))) <= width for e in words)
    assert all(0 <= float(str(e.get("y"))) <= height for e in words)


def test_names_are_text_whatever_they_hold() -> None:
    drawing = dendrogram(many(2, name="<script>&\"'"))
    assert not list(ElementTree.fromstring(drawing).iter("script"))
    assert any("<script>" in one for one in texts(drawing))


def test_colours_are_those_of_the_page() -> None:
    drawing = dendrogram(worked())
    assert set(re.findall(r"var\((--\w+)\)", drawing)) == {"--c1"}
    assert not re.search(r"#[0-9a-f]{3,6}", drawing)


def test_the_tables_beside_say_all_pairs_and_all_cuts() -> None:
    pairs, cuts = (told["table"] for told in figures_of(worked()))
    assert pairs["rows"][0] == ["c + d", "1.4700", "1.4000", "+0.0700", "1.0500"]
    assert pairs["rows"][6:] == [
        [f"{name} alone", "–", loss, "–", "–"]
        for name, loss in zip("abcd", ("1.0000", "1.2000", "2.0000", "0.8000"), strict=True)
    ]
    assert [row[1] for row in cuts["rows"]] == ["1", "2", "3", "4"]
    assert cuts["rows"][1] == ["0.05", "2", "1: a, b, d; 2: c"]
