"""The recipes that are shipped pass `check` by what a hub shows of their models, and without any hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emberge.recipes.parse.shipped import shipped_recipes

from tests.support.hub_models import MODELS, REAL, write_hub
from tests.support.loopback_hub import serving

# The papers' own recipes are checked with what they say in test_boom_recipes and test_codiemb_paper.
TEXTS = {
    name: one.path.read_text("utf-8")
    for name, one in shipped_recipes().items()
    if not name.startswith(("boom/static", "codiemb/paper"))
}
NAME_HUB = [
    name for name, text in TEXTS.items() if any(model in text for model in (*MODELS, *REAL))
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every hub model that a shipped recipe names, by configs and tokenizer alone."""
    return write_hub(tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("built"))


@pytest.fixture(params=sorted(TEXTS))
def name(request: pytest.FixtureRequest) -> str:
    """A shipped recipe, whose data lie here if it needs some beside the project."""
    if "shared/data" in TEXTS[request.param]:
        request.getfixturevalue("shared_data")
    return str(request.param)


def check(name: str, cache: Path, hub: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_DATASETS_OFFLINE": "1",  # that hub has models and no data
        "HF_ENDPOINT": hub,
    }
    return subprocess.run(
        [sys.executable, "-m", "emberge", "check", name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_shipped_recipe_checks_by_configs_alone(name: str, models: Path, tmp_path: Path) -> None:
    with serving(models) as hub:
        done = check(name, tmp_path / "cache", hub.url)
        weights = [n for n in hub.fetched if n.endswith((".safetensors", ".bin"))]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "could not be seen" not in done.stdout + done.stderr
    assert weights == []


@pytest.mark.parametrize("offline", [*NAME_HUB, "boom/demo"])
def test_without_a_hub_check_says_what_it_could_not_see(offline: str, tmp_path: Path) -> None:
    done = check(offline, tmp_path / "cache", "http://127.0.0.1:9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("could not be seen" in done.stdout + done.stderr) == (offline in NAME_HUB)
