"""A teacher whose card or config has prompts that a recipe leaves out is warned about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import check_recipe, load_plugins, parse_recipe
from emberge_data.steps.teacher import card_prompts

PLUGINS = load_plugins()
CARDS = {
    "e5": ("texts = ['query: how much', \"passage: as much\"]", ["query: ", "passage: "]),
    "nomic": (
        "encode([`search_document: a`, 'search_query: b'])",
        ["search_document: ", "search_query: "],
    ),
    "bge": (
        'instruction = "Represent this sentence for searching relevant passages:"',
        ["Represent this sentence for searching relevant passages:"],
    ),
    "instruct": (r"f'Instruct: {task}\nQuery: {query}'", ["Instruct: {task}"]),
    "none": ("The query: a text that is searched for. Pass `query` and 'document'.", []),
}
RECIPE = """
steps:
  scored:
    score_pairs:
      data: {path: ./pairs.jsonl, task: retrieval}
      teacher: {model: ./model, MORE}
"""


@pytest.fixture
def model(bert: Path, tmp_path: Path) -> Path:
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"query": "a", "pos": ["b"], "neg": []}))
    return Path(shutil.copytree(bert, tmp_path / "model"))


def warned(model: Path, more: str = "") -> list[str]:
    text = RECIPE.replace("MORE", more)
    recipe = parse_recipe(text, PLUGINS, path=model.parent / "recipe.yaml")
    found = check_recipe(recipe, PLUGINS)
    found.raise_errors()
    assert all(one.where.endswith("recipe.yaml:6") for one in found.problems)
    return [one.message for one in found.problems]


@pytest.mark.parametrize("name", CARDS)
def test_prompts_are_found_on_cards(name: str, tmp_path: Path) -> None:
    text, prompts = CARDS[name]
    (tmp_path / "README.md").write_text(f"# A model\n\n```python\n{text}\n```\n")
    assert card_prompts(tmp_path) == prompts


def test_a_teachers_prompts_on_its_card_are_warned_about_until_given(model: Path) -> None:
    assert warned(model) == []
    (model / "README.md").write_text(CARDS["e5"][0])
    (message,) = warned(model)
    assert "'query: '" in message
    assert "query_prompt" in message
    assert warned(model, "query_prompt: 'query: ', document_prompt: 'passage: '") == []


def test_prompts_of_a_config_are_warned_about_by_their_names(model: Path) -> None:
    path = model / "config_sentence_transformers.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "prompts": {"s2p_query": "Instruct: find\nQuery: "}}))
    (message,) = warned(model)
    assert "s2p_query" in message
    path.write_text(json.dumps({**settings, "prompts": {"query": "search: ", "s2p": "x"}}))
    assert warned(model) == []  # it is used without being asked for
