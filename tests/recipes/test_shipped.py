"""The recipes that are shipped pass `check` by what a hub shows of their models, and without any hub."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emberge.recipes.describe import shipped_recipes

from tests.plugins.standard.loopback_hub import serving

RECIPES = sorted(shipped_recipes())
# Every hub model that a shipped recipe names, and what its configs and tokenizer are like.
MODELS = (
    "sentence-transformers/all-MiniLM-L6-v2",
    "sentence-transformers/multi-qa-MiniLM-L6-cos-v1",
    "nreimers/MiniLM-L6-H384-uncased",
)


def check(name: str, cache: Path, hub: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub}
    return subprocess.run(
        [sys.executable, "-m", "emberge", "check", name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_recipe_checks_by_configs_alone(name: str, minilm: Path, tmp_path: Path) -> None:
    for model in MODELS:
        folder = tmp_path / "hub" / model / "main"
        shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    with serving(tmp_path / "hub") as hub:
        done = check(name, tmp_path / "cache", hub.url)
        weights = [n for n in hub.fetched if n.endswith((".safetensors", ".bin"))]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not be seen" not in done.stdout + done.stderr
    assert weights == []


@pytest.mark.parametrize("name", RECIPES)
def test_without_a_hub_check_says_what_it_could_not_see(name: str, tmp_path: Path) -> None:
    done = check(name, tmp_path / "cache", "http://127.0.0.1:9")
    assert done.returncode == 0, done.stdout + done.stderr
    names_hub = any(model in shipped_recipes()[name].path.read_text("utf-8") for model in MODELS)
    assert ("could not be seen" in done.stdout + done.stderr) == names_hub
