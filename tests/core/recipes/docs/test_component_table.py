"""`emberge list`: a table for scanning, filters, options on demand, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from emberge import PluginError, Plugins, Sampler, hookimpl, load_plugins
from emberge.recipes import list_components
from emberge.recipes.docs.describe import list_component_rows

from tests.support import acme
from tests.support.reading import plugins


def lines_of(*words: str, **options: object) -> list[str]:
    return list_components(plugins(), words, **options).splitlines()  # type: ignore[arg-type]


def test_with_no_plugin_the_table_is_empty() -> None:
    blocked = load_plugins(block=["*"])
    assert list_components(blocked) == ""
    assert json.loads(list_components(blocked, as_json=True)) == []


def test_each_component_is_one_line_under_its_kind() -> None:
    lines = lines_of()
    rows = list_component_rows(plugins())
    entries = [line for line in lines if line.startswith("  ")]
    assert [line.split()[0] for line in entries] == [row["name"] for row in rows]
    assert all(row["summary"] in line for row, line in zip(rows, entries, strict=True))
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings.index("Steps") < headings.index("Losses") < headings.index("Merge strategies")
    assert not any("temperature" in line for line in lines), "options are asked for by --long"


def test_only_what_is_not_ours_names_its_plugin() -> None:
    (line,) = [line for line in lines_of() if line.startswith("  ties ")]
    assert line.endswith("(acme)")
    installed = list_components(load_plugins(block=()))
    assert "  slerp " in installed
    assert not [line for line in installed.splitlines() if line.endswith("(standard)")]


def test_lines_fit_the_width_and_are_whole_without_one() -> None:
    rows = list_component_rows(plugins())
    for width in (50, 72, 80):
        lines = lines_of(width=width)
        assert max(map(len, lines)) <= width
        assert [line for line in lines if "…" in line], "the longest summary does not fit"
        assert all(line.endswith("(acme)") for line in lines if line.startswith("  "))
    assert max(map(len, lines_of())) > max(len(row["summary"]) for row in rows)


def test_long_shows_options_and_where_a_component_comes_from() -> None:
    text = "\n".join(lines_of("ties", long=True))
    assert "  ties                   acme (acme-tools 1.0)\n      Cut, then vote.\n" in text
    assert "density: a number" in text


def test_words_keep_what_has_all_of_them_in_name_kind_or_documentation() -> None:
    def names(*words: str) -> list[str]:
        return [row["name"] for row in json.loads(list_components(plugins(), words, as_json=True))]

    assert names("TIES") == ["ties"]
    assert "ties" in names("vote"), "a word of its documentation"
    assert set(names("loss")) >= {"contrast", "rank"}
    assert names("pull", "together") == ["contrast"]
    assert "contrast" not in names("order")
    one = load_plugins(block=())
    found = [row["name"] for row in json.loads(list_components(one, ("slerp",), as_json=True))]
    assert {"slerp", "multi_slerp", "nuslerp"} <= set(found)
    assert "ties" not in found


def test_words_that_nothing_has_suggest_a_name() -> None:
    with pytest.raises(PluginError, match=r"'tyes'.*did you mean 'ties'"):
        lines_of("tyes")
    with pytest.raises(PluginError, match=r"'ties'.*`emberge list`"):
        lines_of("ties", kind="launcher")


def test_a_kind_keeps_its_own_and_one_that_is_not_there_is_suggested() -> None:
    assert lines_of(kind="loss")[0] == "Losses"
    assert "Steps" not in lines_of(kind="loss")
    with pytest.raises(PluginError, match=r"'los'.*did you mean 'loss'"):
        lines_of(kind="los")


def test_json_has_all_that_is_known() -> None:
    assert json.loads(list_components(plugins(), as_json=True)) == list_component_rows(plugins())


def test_a_name_that_two_plugins_give_is_shown_as_it_must_be_written() -> None:
    class Twin:
        @hookimpl
        def register_samplers(self) -> Mapping[str, type[Sampler]]:
            return dict(acme.register_samplers())

    both: Plugins = plugins()
    both.register(Twin(), "twin")
    names = [line.split()[0] for line in list_components(both, kind="sampler").splitlines()[1:]]
    assert {"acme:bag", "twin:bag"} <= set(names)
    assert "bag" not in names
    long = " ".join(list_components(both, kind="sampler", long=True).split())
    assert "! sampler 'bag' comes from 'acme' and from 'twin'; write acme:bag or twin:bag" in long
