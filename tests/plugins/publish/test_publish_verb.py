"""The verb and the step `publish` without a hub: options, checks, and what an upload sends."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import ModelRef, RecipeError
from emberge_publish import publish_verb
from emberge_publish.hooks import register_verbs
from emberge_publish.publish_step import Publish

Capture = pytest.CaptureFixture[str]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("emberge publish")
    register_verbs()["publish"].add_options(found)
    return found


def test_only_a_dry_run_needs_no_name() -> None:
    with pytest.raises(RecipeError, match=r"soup: .*OWNER/NAME.*--dry-run"):
        publish_verb.run(parser().parse_args(["soup"]), "plugins")  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["", "hf_x"])
def test_the_step_warns_before_the_run_if_nobody_is_logged_in(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    context: Any = SimpleNamespace(
        problem=lambda text, option: ("problem", option, text),
        warning=lambda text: ("warning", "", text),
    )

    def checked(name: str, model: str) -> list[Any]:
        step = Publish(model=ModelRef(model, Path()), name=name)
        return [(kind, option) for kind, option, _ in step.check(context)]

    nobody = [] if token else [("warning", "")]
    assert checked("me/soup", "./soup") == nobody
    wrong = [("problem", "name"), ("problem", "model")]
    assert checked("soup", "./soup+./adapter") == [*wrong, *nobody]
