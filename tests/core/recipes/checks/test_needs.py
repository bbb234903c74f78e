"""What `emberge check` sums up: models, data, disk, access, and what it could not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from emberge import check_recipe, hookimpl, load_plugins, parse_recipe
from emberge.errors import AccessError
from emberge.model_folder import Checkpoint, count_parameters
from emberge.recipes import RecipeNeeds
from emberge.wording import human_size


class Hub:
    """A hub that keeps `me/gated` to itself and has no network for all others."""

    @hookimpl
    def locate_model(
        self, reference: str, revision: str | None, files: Literal["all", "metadata"]
    ) -> Path | None:
        if reference == "me/gated":
            raise AccessError("'me/gated' is gated")
        raise ConnectionError("no network")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with pairs."""
    monkeypatch.chdir(tmp_path)
    pairs = [{"anchor": f"{i} words", "positive": f"to {i} words"} for i in range(40)]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in pairs))
    return tmp_path


def needs(steps: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of the sum by label."""
    plugins = load_plugins(block=["hub"])
    plugins.register(Hub(), "the hub of this test")
    recipe = parse_recipe(json.dumps({"steps": steps}), plugins=plugins)
    report = check_recipe(recipe, plugins, sizes=True)
    lines: dict[str, list[str]] = {}
    label = ""
    for line in RecipeNeeds(recipe, report).lines[1:]:
        label = line[2:12].strip() or label
        lines.setdefault(label, []).append(line[14:])
    return lines


def training(model: str, **options: Any) -> dict[str, Any]:
    pairs = {"data": "./pairs.jsonl", "loss": "infonce", "sampler": "batch_shuffle", "max_steps": 2}
    return {"train": {"model": model, **pairs, **options}}


def test_what_is_from_outside_made_and_written_is_counted(place: Path, bert: Path) -> None:
    steps = {
        "a": training(str(bert), keep_last=2),
        "adapter": training(str(bert), backbone={"text_encoder": {"lora": {"rank": 2}}}),
        "both": {"merge": {"models": [str(bert), "$a"], "strategy": "linear"}},
    }
    found = needs(steps)
    size = count_parameters(Checkpoint(bert)).total
    assert found["models"] == ["1 from outside, 3 made by steps"]
    assert found["data"] == [
        "1 set of rows and 0 tasks to score on from outside, and data of 0 steps"
    ]
    assert found["disk"] == [
        f"{human_size(4 * (1 + 2) * size + 4 * size)} for the models of 2 steps",
        "downloads, data and saved states are not counted",
    ]
    assert found["access"] == ["nothing is gated or needs a token"]
    assert found["not seen"] == ["nothing"]


def test_what_cannot_be_seen_is_counted_by_the_billion_or_named(place: Path, bert: Path) -> None:
    found = needs({"a": training("me/far"), "b": training("$a"), "c": training(str(bert))})
    assert found["disk"][0].endswith("for the models of 1 step")
    assert found["disk"][1] == "8 GB for each billion parameters of me/far"
    assert found["not seen"] == ["1 model (--long lists them)"]
    found = needs({"a": training("me/gated")})
    assert found["access"] == ["'me/gated' is gated"]
    assert needs({"a": training("me/far")})["access"][0].endswith("of what could be looked at")


def test_a_config_without_weights_has_a_size(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((bert / "config.json").read_text())
    assert count_parameters(Checkpoint(tmp_path)) == count_parameters(Checkpoint(bert))
