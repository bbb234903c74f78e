"""Specialists of text, vision and audio, and what is composed of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from emberge import load_plugins, parse_recipe, run_recipe

from tests.support.result_folders import folders
from tests.support.specialists import STEPS, change_config, write_specialists

COMPOSED = """
  both: {{compose: {{text: $merged, vision: {root}/vision, audio: {root}/audio}}}}
  seen: {{compose: {{text: $merged, vision: {root}/vision}}}}
  heard: {{compose: {{text: $merged, audio: {root}/audio}}}}
  unmerged: {{compose: {{text: $encoder, vision: {root}/vision, audio: {root}/audio}}}}
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny specialists with a bidirectional text model; do not write into them."""
    root = write_specialists(tmp_path_factory.mktemp("models"))
    change_config(root / "text", is_causal=False)
    return root


@pytest.fixture
def place(models: Path, tmp_path: Path) -> Path:
    """A copy of the specialists to write into."""
    return Path(shutil.copytree(models, tmp_path / "place"))


@pytest.fixture(scope="session")
def composing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that composes specialists, which are beside it."""
    root = write_specialists(tmp_path_factory.mktemp("specialists"))
    path = root / "recipe.yaml"
    path.write_text(STEPS.format(root=root, more=COMPOSED.format(root=root)))
    return path


@pytest.fixture(scope="session")
def made(composing: Path) -> dict[str, Path]:
    """Folders of specialists and of the recipe's results by name; do not write into them."""
    root, plugins = composing.parent, load_plugins()
    recipe = parse_recipe(composing.read_text(), plugins)
    results = folders(run_recipe(recipe, root / "out", plugins, quiet=True))
    return {**results, **{name: root / name for name in ("text", "vision", "audio")}}
