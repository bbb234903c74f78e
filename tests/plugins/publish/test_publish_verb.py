"""The verb and the step `publish` without a hub: options, checks, and what an upload sends."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import ModelRef, RecipeError
from emberge.cli import arguments
from emberge_publish import publish_verb
from emberge_publish.hooks import register_verbs
from emberge_publish.hub_repository import FileOnHub, Remote
from emberge_publish.publication import Choices, Publication, Published
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
    plain = {
        "folder": Path("soup"),
        "name": "me/soup",
        "private": False,
        "replace": False,
        "licence": None,
        "yes": False,
        "dry_run": False,
    }
    assert vars(parser().parse_args(["soup", "me/soup"])) == plain
    with pytest.raises(SystemExit):
        parser().parse_args(["--dry-run", "--yes", "soup"])
    dry = {**plain, "name": None, "dry_run": True}
    assert vars(parser().parse_args(["--dry-run", "soup"])) == dry
    words = "--private --replace --licence mit --yes"
    assert vars(parser().parse_args(["soup", "me/soup", *words.split()])) == {
        **plain,
        "private": True,
        "replace": True,
        "licence": "mit",
        "yes": True,
    }


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


def remote_of(commit: str, files: Mapping[str, bytes]) -> Remote:
    return Remote(commit, {p: FileOnHub(len(b), git_blob(b)) for p, b in files.items()})


class Hub:
    """A repository in memory."""

    name, url = "me/soup", "https://hub/me/soup"

    def __init__(self, at_creation: Remote | None = None) -> None:
        self.at_creation = at_creation
        self.files: dict[str, bytes] = {}
        self.asked: list[Any] = []

    def create(self, private: bool) -> Remote:
        self.asked.append(("create", private))
        return self.at_creation or Remote("first")

    def commit(self, files: Mapping[str, bytes], removed: Sequence[str], parent: str) -> str:
        self.asked.append(("commit", dict(files), removed, parent))
        kept = {**self.files, **files}.items()
        self.files = {path: content for path, content in kept if path not in removed}
        return "0123456789abcdef"


def publication(hub: Hub, **more: Any) -> Publication:
    files = {"a": b"xyz", "b": b"1234"}
    choices = Choices(name="me/soup", **more)
    return Publication(choices, hub, files, "mit", ())  # type: ignore[arg-type]


@pytest.mark.parametrize("private", [False, True])
def test_a_new_repository_gets_all_files_in_one_commit(private: bool) -> None:
    hub = Hub()
    mine = publication(hub, private=private)
    done = mine.upload(mine.planned(Remote()), Remote())
    assert done == Published("0123456789abcdef", "https://hub/me/soup", 2, 7)
    assert hub.asked == [
        ("create", private),
        ("commit", {"a": b"xyz", "b": b"1234"}, [], "first"),
    ]


def test_only_what_differs_is_sent_and_removed_on_the_commit_that_was_seen() -> None:
    hub = Hub()
    hub.files = {"a": b"abc", "b": b"1234", "gone": b"x"}
    seen = remote_of("old", hub.files)
    mine = publication(hub, replace=True)
    assert mine.upload(mine.planned(seen), seen) == Published("0123456789abcdef", hub.url, 1, 3)
    assert hub.asked == [("commit", {"a": b"xyz"}, ["gone"], "old")]
    hub.files["gone"] = b"x"
    seen, hub.asked = remote_of("more", hub.files), []
    assert mine.upload(mine.planned(seen), seen) == Published("0123456789abcdef", hub.url, 0, 0)
    assert hub.asked[0] == ("commit", {}, ["gone"], "more")
    seen, hub.asked = remote_of("equal", hub.files), []
    assert mine.upload(mine.planned(seen), seen) == Published("equal", hub.url, 0, 0)
    assert not hub.asked


def test_a_repository_of_somebody_faster_is_not_overwritten() -> None:
    hub = Hub(at_creation=remote_of("theirs", {"a": b"other"}))
    mine = publication(hub)
    with pytest.raises(RecipeError, match=r"me/soup: .*\(a\).*--replace"):
        mine.upload(mine.planned(Remote()), Remote())
    assert [kind for kind, *_ in hub.asked] == ["create"]
