"""Publishing sends what the publisher was shown, and nothing that only lies in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError, load_plugins, parse_recipe, run_recipe
from emberge.cli.main import main

from tests.support.loopback_hub import Hub
from tests.support.publishing import Merged

# Of the hub's client itself, about how it calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Capture = pytest.CaptureFixture[str]
RECIPE = """
seed: 0
steps:
  soup:
    merge: {models: [./legal, ./faq], strategy: linear}
  public:
    publish: {model: $soup, name: me/soup, upload: true}
"""


# ── a recipe that uploads ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def uploading(merged: Merged, tmp_path: Path, capsys: Capture) -> Path:
    merged("license: mit", "license: mit")
    capsys.readouterr()
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def test_check_names_in_its_first_line_where_a_run_uploads_to(
    uploading: Path, capsys: Capture
) -> None:
    assert main(["check", str(uploading), "--offline"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "uploads to me/soup" in first
    assert "--allow-upload" in first


def test_a_run_that_uploads_is_refused_before_any_work_without_the_flag(
    hub: Hub, uploading: Path, capsys: Capture
) -> None:
    assert main(["run", str(uploading), "--out", "out", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "recipe.yaml:6" in said
    assert "--allow-upload" in said
    assert not Path("out").exists()
    assert not hub.asked


def test_the_python_call_asks_for_leave_too(hub: Hub, uploading: Path) -> None:
    plugins = load_plugins()
    recipe = parse_recipe(RECIPE, plugins, path=uploading)
    with pytest.raises(RecipeError, match=r"me/soup.*--allow-upload"):
        run_recipe(recipe, Path("out"), plugins, quiet=True)
    assert not Path("out").exists()


def test_a_rehearsal_needs_no_leave_and_sends_nothing(hub: Hub, uploading: Path) -> None:
    assert main(["rehearse", str(uploading), "--out", "out", "--quiet"]) == 0
    assert not hub.asked
    assert "me/soup" not in hub.commits
