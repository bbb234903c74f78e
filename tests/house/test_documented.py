"""Everything that a recipe can say is documented where `emberge show` and editors find it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from emberge import load_plugins
from emberge.recipes import describe_component
from emberge.recipes.docs.describe import list_component_rows

PLUGINS = load_plugins(block=())
NAMES = sorted({component.full_name for component in PLUGINS.components})


@functools.cache
def rows() -> dict[str, dict[str, Any]]:
    return {row["full_name"]: row for row in list_component_rows(PLUGINS)}


@pytest.mark.parametrize("name", NAMES)
def test_every_component_says_in_one_sentence_what_it_does(name: str) -> None:
    assert rows()[name]["summary"].rstrip().endswith((".", ":"))
    assert len(rows()[name]["summary"].split()) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_component_is_documented(name: str) -> None:
    silent = [option["name"] for option in rows()[name]["options"] if not option["doc"].strip()]
    assert silent == []


@pytest.mark.parametrize("name", NAMES)
def test_show_names_every_option(name: str) -> None:
    page = describe_component(PLUGINS, name)
    assert rows()[name]["summary"].split()[0] in page
    assert [
        option["name"] for option in rows()[name]["options"] if option["name"] not in page
    ] == []


def test_no_two_first_party_plugins_give_one_name() -> None:
    assert {name: row["clash"] for name, row in rows().items() if row["clash"]} == {}
