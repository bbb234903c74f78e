"""The recipes that are shipped pass `check` by what a hub shows of their models, and without any hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from emberge.recipes import list_shipped_recipes

from tests.support.hub_models import MODELS, REAL, check, write_hub
from tests.support.loopback_hub import serving
from tests.support.places import ROOT

TEXTS = {name: one.path.read_text("utf-8") for name, one in list_shipped_recipes().items()}
# What `check` says of the papers' recipes, too.
NOTES = {"codiemb/paper": "decoder_joint and 5 more steps: not native\n  attention: bidirectional"}
NAME_HUB = [
    name for name, text in TEXTS.items() if any(model in text for model in (*MODELS, *REAL))
]


@pytest.mark.parametrize("name", [n for n in TEXTS if n.startswith(("boom/", "bidirlm/"))])
def test_a_recipe_says_how_it_is_run_and_what_came_out(name: str) -> None:
    header = list_shipped_recipes()[name].description
    assert f"emberge run {name} --out" in header
    for word in ("What it makes", "Command", "Time", "Result"):
        assert re.search(rf"^{word}\b", header, re.MULTILINE), word


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every hub model that a shipped recipe names, by configs and tokenizer alone."""
    return write_hub(tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("built"))


@dataclass(frozen=True)
class Checked:
    """What `emberge check` gave for each recipe: exit code and output, and the files that it fetched."""

    of: dict[str, tuple[int, str]]
    fetched: list[str]


@pytest.fixture(scope="module")
def checked(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """All shipped recipes, checked beside a hub; those without their data only where these lie here."""
    here = [
        name
        for name, text in TEXTS.items()
        if (ROOT.parent / "shared" / "data").is_dir() or "shared/data" not in text
    ]
    with serving(models) as hub:
        found = check(here, tmp_path_factory.mktemp("cache"), hub.url)
        return Checked(found, list(hub.fetched))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_shipped_recipe_checks_by_configs_alone(
    name: str, checked: Checked, request: pytest.FixtureRequest
) -> None:
    if "shared/data" in TEXTS[name]:
        request.getfixturevalue("shared_data")
    code, said = checked.of[name]
    assert code == 0, said
    assert "could not be seen" not in said
    assert NOTES.get(name, "") in said


@pytest.mark.slow
def test_a_check_fetches_no_weights(checked: Checked) -> None:
    assert checked.fetched
    assert [n for n in checked.fetched if n.endswith((".safetensors", ".bin"))] == []


@pytest.mark.slow
def test_with_nothing_here_recipes_of_hub_models_pass(tmp_path: Path) -> None:
    names = [name for name in list_shipped_recipes() if name in NAME_HUB]
    if not (ROOT.parent / "shared" / "data").is_dir():
        names = [name for name in names if "shared/data" not in TEXTS[name]]
    assert len(names) > 10
    for code, said in check(names, tmp_path / "cache", "http://127.0.0.1:9").values():
        assert code == 0, said
        assert "not seen: " in said
