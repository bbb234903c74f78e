"""The verb and the step `publish` without a hub: options, checks, and what an upload sends."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import ModelRef, RecipeError
from emberge.cli import arguments
from emberge_publish import publish_verb
from emberge_publish.hooks import register_verbs
from emberge_publish.hub_repository import FileOnHub, Remote
from emberge_publish.publication import Choices, Publication
from emberge_publish.publish_step import Publish

from tests.support.publishing import git_blob

Capture = pytest.CaptureFixture[str]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("emberge publish")
    register_verbs()["publish"].add_options(found)
    return found


@pytest.mark.parametrize(
    "words",
    [
        "soup me/soup --dry-run",
        "--dry-run soup me/soup",
        "soup --dry-run me/soup",
        "soup --licence mit me/soup --dry-run",
        "--dry-run -- soup me/soup",
    ],
)
def test_options_stand_before_between_or_after_the_other_words(words: str) -> None:
    options = arguments.parse(["publish", *words.split()], register_verbs())
    assert (options.folder, options.name, options.dry_run) == (Path("soup"), "me/soup", True)


def test_a_word_too_many_names_the_help_of_the_verb() -> None:
    with pytest.raises(RecipeError, match=r"arguments: more .*`emberge publish --help`"):
        arguments.parse(["publish", "soup", "--dry-run", "me/soup", "more"], register_verbs())


def test_the_options_are_those_of_the_usage_and_have_their_defaults() -> None:
    assert " ".join(parser().format_usage().split()) == (
        "usage: emberge publish [-h] [--dry-run] [--private] [--replace] [--licence ID] "
        "[--yes] DIR [OWNER/NAME]"
    )
    names = ("private", "replace", "licence", "yes", "dry_run")
    plain = vars(parser().parse_args(["soup", "me/soup"]))
    assert plain == {
        **{"folder": Path("soup"), "name": "me/soup"},
        **dict.fromkeys(names, False),
        "licence": None,
    }
    with pytest.raises(SystemExit):
        parser().parse_args(["--dry-run", "--yes", "soup"])
    dry = vars(parser().parse_args(["--dry-run", "soup"]))
    assert dry == {**plain, "name": None, "dry_run": True}
    words = ["soup", "me/soup", "--private", "--replace", "--licence", "mit", "--yes"]
    given = {**dict.fromkeys(names, True), "licence": "mit", "dry_run": False}
    assert vars(parser().parse_args(words)) == {**plain, **given}


def test_only_a_dry_run_needs_no_name() -> None:
    with pytest.raises(RecipeError, match=r"soup: .*OWNER/NAME.*--dry-run"):
        publish_verb.run(parser().parse_args(["soup"]), "plugins")  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["", "hf_x"])
def test_a_step_warns_before_the_run_where_nobody_is_logged_in(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    context: Any = SimpleNamespace(
        problem=lambda text, option: ("problem", option, text),
        warning=lambda text, option: ("warning", option, text),
    )

    def checked(name: str, model: str, upload: bool) -> list[Any]:
        step = Publish(model=ModelRef(model, Path()), name=name, upload=upload)
        return [(kind, option) for kind, option, _ in step.check(context)]

    nobody = [] if token else [("warning", "upload")]
    assert checked("me/soup", "./soup", True) == nobody
    assert checked("me/soup", "./soup", False) == []
    assert checked("soup", "./soup+./adapter", False) == [("problem", "name"), ("problem", "model")]
    plain = Publish(model=ModelRef("./soup"), name="me/soup")
    assert (plain.upload, plain.private, plain.replace, plain.after) == (False, False, False, ())
    assert (plain.licence, plain.uploads_to()) == (None, ())


# ── the upload ──────────────────────────────────────────────────────────────────────────────────────


class Hub:
    """A repository in memory, where somebody else was faster."""

    name, url = "me/soup", "https://hub/me/soup"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def create(self, private: bool) -> Remote:
        self.asked.append("create")
        content = b"other"
        return Remote("theirs", {"a": FileOnHub(len(content), git_blob(content))})


def test_a_repository_of_somebody_faster_is_not_overwritten() -> None:
    hub = Hub()
    mine = Publication(Choices(name="me/soup"), hub, {"a": b"xyz"}, "mit", ())  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"me/soup: .*\(a\).*--replace"):
        mine.upload(mine.planned(Remote()), Remote())
    assert hub.asked == ["create"]
