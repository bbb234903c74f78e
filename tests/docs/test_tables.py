"""Which method when: no number stands there that the header of the recipe it names has not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from emberge.recipes import list_shipped_recipes

from tests.docs.pages import DOCS
from tests.support.places import ROOT

TEXT = (DOCS / "methods.md").read_text("utf-8")
RECIPES = list_shipped_recipes()
SECTIONS = [part for part in TEXT.split("\n## ")[1:] if "Measured by" in part]


def numbers(text: str) -> set[str]:
    """The decimal numbers of a text, without signs."""
    return set(re.findall(r"(?<![\w.])\d+\.\d+", text))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_a_table_has_the_numbers_of_its_recipe(section: str) -> None:
    names = re.findall(r"Measured by `([\w/]+)`", section)
    assert len(names) == 1
    measured = numbers(RECIPES[names[0]].description)
    told = numbers(re.sub(r"Qwen3 of \d\.\d", "", section))
    if names[0] == "boom/lora":  # it compares with another recipe's result
        measured |= numbers(RECIPES["boom/demo"].description)
    assert told - measured == set()
    assert len(told) >= 5


def test_every_section_with_a_table_names_its_recipe() -> None:
    assert len(SECTIONS) == TEXT.count("\n## ")


@pytest.mark.parametrize("page", ["how/streaming.md", "howto/mergekit.md", "howto/memory.md"])
def test_seconds_and_megabytes_beside_mergekit_are_those_that_were_measured(page: str) -> None:
    told = re.findall(r"([\d.,]+) (?:s|MB)\b", (DOCS / page).read_text("utf-8"))
    measured = (DOCS / "results" / "mergekit.md").read_text("utf-8")
    assert told
    assert {one for one in told if one not in measured} == set()


@pytest.mark.parametrize("page", sorted((DOCS / "contributing").glob("*.md")), ids=lambda p: p.name)
def test_pages_for_contributors_name_files_that_exist(page: Path) -> None:
    named = re.findall(r"`((?:core|plugins|tests)/[\w/.]+)`", page.read_text("utf-8"))
    assert [one for one in named if not (ROOT / one).exists()] == []


def test_each_file_to_read_exists_in_the_repository_or_the_core() -> None:
    text = (DOCS / "contributing" / "reading.md").read_text("utf-8")
    named = re.findall(r"`([\w/.]+\.py)`", text)
    assert len(named) > 40
    roots = (ROOT, ROOT / "core" / "emberge")
    assert [one for one in named if not any((root / one).is_file() for root in roots)] == []
