"""A study's drawings hold its numbers, in words too."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from emberge_boom.study.dendrogram import dendrogram
from emberge_boom.study.gather_study import study_of
from emberge_boom.study.heat_map import heat_map
from emberge_boom.study.study import Study
from emberge_boom.study.study_figures import figures_of
from emberge_boom.study.svg import ticks
from emberge_boom.study.tree import leaves

from tests.plugins.boom.test_interactions import worked

SPACE = "{http://www.w3.org/2000/svg}"


def many(count: int, name: str = "a rather long name of a dataset") -> Study:
    names = [f"{name} {i}" for i in range(count)]
    alone = {one: [(one, 1.0 + i / 10)] for i, one in enumerate(names)}
    pairs = {
        pair: [(pair[0], 1.0 + 0.01 * i)] for i, pair in enumerate(itertools.combinations(names, 2))
    }
    facts = {one: {"task": "sts", "rows": 3, "of": 9} for one in names}
    return study_of(alone, pairs, facts)


def texts(drawing: str) -> list[str]:
    return ["".join(e.itertext()) for e in ElementTree.fromstring(drawing).iter(f"{SPACE}text")]


def test_the_heat_map_has_every_pair_twice_and_every_dataset_once() -> None:
    found = texts(heat_map(worked()))
    assert found.count("\N{MINUS SIGN}12.0") == 2  # a and c: 1.32 / 1.5
    assert found.count("+5.0") == 2  # c and d
    assert {"1.000", "1.200", "2.000", "0.800"} <= set(found)  # the losses alone
    assert found.count("a") == found.count("d") == 2  # a row and a column
    assert {"\N{MINUS SIGN}12.0 %", "0 %", "+12.0 %"} <= set(found)  # the scale


def test_help_and_harm_differ_in_colour_and_in_sign() -> None:
    cells = {}
    for group in ElementTree.fromstring(heat_map(worked())).iter(f"{SPACE}g"):
        title, rect = group.find(f"{SPACE}title"), group.find(f"{SPACE}rect")
        if title is not None and rect is not None:
            cells[(title.text or "").partition(":")[0]] = str(rect.get("style"))
    assert cells["c and d"].startswith("fill:var(--c0)")
    assert cells["a and b"].startswith("fill:var(--c1)")
    strength = {n: float(s.rpartition(":")[2]) for n, s in cells.items() if "opacity" in s}
    assert strength["a and c"] == max(strength.values())
    assert len(cells) == 16


def test_the_tree_has_a_union_at_each_height() -> None:
    drawing = dendrogram(worked())
    assert {"0.04", "0.05", "0.423"} <= set(texts(drawing))
    paths = [str(e.get("d")) for e in ElementTree.fromstring(drawing).iter(f"{SPACE}path")]
    places = [float(p.partition("H")[2].partition("V")[0]) for p in paths]
    assert places == sorted(places)
    assert (places[1] - places[0]) / (places[2] - places[0]) == pytest.approx(
        0.01 / 0.383333, abs=1e-3
    )


def test_branches_do_not_cross() -> None:
    tree = many(12).tree
    order = leaves(tree)
    assert sorted(order) == list(range(12))
    below: dict[int, list[int]] = {leaf: [leaf] for leaf in order}
    for number, (first, second, _, size) in enumerate(tree):
        members = below[12 + number] = below[first] + below[second]
        places = sorted(order.index(leaf) for leaf in members)
        assert places == list(range(places[0], places[0] + size))


@pytest.mark.parametrize("count", [2, 3, 40])
def test_drawings_fit_any_number_of_datasets(count: int) -> None:
    for drawing in (heat_map(many(count)), dendrogram(many(count))):
        root = ElementTree.fromstring(drawing)
        width, height = (float(v) for v in str(root.get("viewBox")).split()[2:])
        assert root.get("role") == "img"
        assert root.get("aria-label")
        for element in root.iter(f"{SPACE}rect"):
            assert 0 <= float(str(element.get("x"))) <= width - float(str(element.get("width")))
            assert 0 <= float(str(element.get("y"))) <= height - float(str(element.get("height")))


def test_names_are_text_whatever_they_hold() -> None:
    study = many(2, name="<script>&\"'")
    for drawing in (heat_map(study), dendrogram(study)):
        assert not list(ElementTree.fromstring(drawing).iter(f"{SPACE}script"))
        assert any("<script>" in one for one in texts(drawing))


def test_colours_follow_the_page_and_stand_alone_in_light_and_dark(tmp_path: Path) -> None:
    for told in figures_of(worked(), tmp_path):
        drawing = (tmp_path / told["file"]).read_text()
        style, _, rest = drawing.partition("</style>")
        assert "prefers-color-scheme: dark" in style
        assert not re.search(r"#[0-9a-f]{3,6}", rest)
        used = set(re.findall(r"var\((--\w+)\)", drawing))
        assert all(f"{name}: #" in style for name in used)


def test_the_tables_beside_say_all_pairs_and_all_cuts(tmp_path: Path) -> None:
    pairs, cuts = (told["table"] for told in figures_of(worked(), tmp_path))
    assert pairs["rows"][0] == ["c + d", "1.4700", "1.4000", "+5.00 %", "1.0500"]
    assert len(pairs["rows"]) == 6
    assert [row[1] for row in cuts["rows"]] == ["1", "2", "3", "4"]
    assert cuts["rows"][1] == ["0.05", "2", "1: a, b, d; 2: c"]


def test_ticks_are_round() -> None:
    assert ticks(0, 0.44, 6) == [0, 0.1, 0.2, 0.3, 0.4]
    assert ticks(0.81, 0.95, 6) == pytest.approx([0.85, 0.9, 0.95])
