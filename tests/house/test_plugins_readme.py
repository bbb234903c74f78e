"""plugins/README.md: the plugin in thirty lines works, and the table names what each plugin adds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from emberge import Block, load_plugins, merge_blocks
from emberge.plugins import Plugins

from tests.support.sources import PLUGINS, ROOT

README = (PLUGINS / "README.md").read_text("utf-8")


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def installed() -> Plugins:
    return load_plugins(block=())


@pytest.fixture
def plugin_file(tmp_path: Path) -> Path:
    (code,) = python_blocks(README)
    (tmp_path / "mine.py").write_text(code)
    return tmp_path / "mine.py"


def test_the_plugin_has_thirty_lines(plugin_file: Path) -> None:
    assert len(plugin_file.read_text().splitlines()) <= 30


def test_the_projects_readme_shows_the_same_plugin(plugin_file: Path) -> None:
    assert plugin_file.read_text() in python_blocks((ROOT / "README.md").read_text("utf-8"))


def test_the_plugin_takes_the_median(plugin_file: Path) -> None:
    median = load_plugins([plugin_file], block=("*",)).find("median", "merge strategy").type
    tensors = torch.tensor([[[1.0, 2.0]], [[3.0, 1.0]], [[100.0, 6.0]]])
    block = Block.of(tensors)
    (plain,) = merge_blocks([median()], [block])
    assert plain.tolist() == [[3.0, 2.0]]
    type_of_option = type(median().mean)
    (halfway,) = merge_blocks([median(mean=type_of_option(0.5))], [block])
    torch.testing.assert_close(halfway, (plain + tensors.mean(0)) / 2)


def table() -> dict[str, set[str]]:
    """Component names by plugin, from the section on what each plugin adds."""
    rows: dict[str, set[str]] = {}
    section = README.partition("## What each plugin here adds")[2]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            rows.setdefault(cells[0].strip("`"), set()).update(re.findall(r"`(\w+)`", cells[2]))
    return rows


def test_the_table_names_every_component_of_every_plugin(installed: Plugins) -> None:
    added: dict[str, set[str]] = {}
    for component in installed.components:
        if component.distribution == "emberge":
            added.setdefault(component.plugin, set()).add(component.name)
    assert table() == added
