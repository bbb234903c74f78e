"""The verb and the step `publish` without a hub: options, what is shown, asked, sent and written."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import Artifact, ModelRef, RecipeError, StepRef
from emberge.cli import arguments
from emberge_publish import publish_verb
from emberge_publish.hooks import register_verbs
from emberge_publish.hub_repository import FileOnHub, Remote
from emberge_publish.publication import Choices, PlannedFile, Publication, Published
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


# ── the verb ────────────────────────────────────────────────────────────────────────────────────────


class Prepared:
    """A publication in the place of a real one: it notes what it is asked for."""

    def __init__(self, commit: str | None, planned: Sequence[PlannedFile]) -> None:
        self.remote, self.states = Remote(commit), list(planned)
        self.files = {"b": b"", "a": b""}
        self.notes = ["a note"]
        self.licence, self.licence_words = "mit", "licence mit"
        self.asked: list[Any] = []
        self.repository = SimpleNamespace(
            name="me/soup",
            require_token=lambda: self.asked.append("token"),
            read_state=lambda: self.remote,
        )

    def planned(self, remote: Remote) -> list[PlannedFile]:
        assert remote is self.remote
        return self.states

    def lines(self, planned: Sequence[PlannedFile], remote: Remote) -> list[str]:
        assert (planned, remote) == (self.states, self.remote)
        return ["one", "two"]

    def preview(self) -> list[str]:
        return ["seen"]

    def table(self) -> list[str]:
        return ["| a table |"]

    def require_free(self, planned: Sequence[PlannedFile]) -> None:
        assert planned is self.states
        self.asked.append("free")

    def upload(self, planned: Sequence[PlannedFile], remote: Remote) -> Published:
        assert (planned, remote) == (self.states, self.remote)
        self.asked.append("upload")
        return Published("0123456789abcdef", "https://hub/me/soup", 1, 2)


def run(prepared: Prepared, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[Any]:
    """Run the verb and return what it was prepared with."""
    given: list[Any] = []
    monkeypatch.setattr(publish_verb, "prepare", lambda *args: given.extend(args) or prepared)
    options = parser().parse_args(["soup", "me/soup", *more])
    assert publish_verb.run(options, "plugins") == 0  # type: ignore[arg-type]
    return given


NEW = [PlannedFile("a", 1, "new"), PlannedFile("b", 2, "same")]
SAME = [PlannedFile("a", 1, "same"), PlannedFile("b", 2, "same")]


def test_what_is_agreed_to_is_shown_checked_and_uploaded(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    prepared = Prepared(None, NEW)
    words = ["--yes", "--private", "--replace", "--licence", "mit"]
    given = run(prepared, monkeypatch, *words)
    choices = Choices(name="me/soup", private=True, replace=True, licence="mit")
    assert given == [Path("soup"), choices]
    assert prepared.asked == ["token", "free", "upload"]
    assert capsys.readouterr().out.splitlines() == [
        "one",
        "two",
        "published: https://hub/me/soup at 0123456789ab",
    ]


def test_where_the_hub_has_it_all_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    prepared = Prepared("c0", SAME)
    given = run(prepared, monkeypatch)
    assert given[1:] == [Choices(name="me/soup")]
    assert prepared.asked == ["token", "free"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing to upload")
    for commit, planned in ((None, SAME), ("c0", NEW)):
        prepared = Prepared(commit, planned)
        run(prepared, monkeypatch, "--yes")
        assert prepared.asked == ["token", "free", "upload"]


@pytest.mark.parametrize(
    ("answer", "agreed"), [(" Y ", True), ("yes", True), ("", False), ("ja", False), (None, False)]
)
def test_an_answer_at_the_terminal_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, answer: str | None, agreed: bool
) -> None:
    asked = []

    def reply(prompt: str) -> str:
        asked.append(prompt)
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", reply)
    prepared = Prepared(None, NEW)
    run(prepared, monkeypatch)
    assert asked == ["publish me/soup? [y/N] "]
    assert prepared.asked == ["token", "free", *(["upload"] if agreed else [])]
    last = capsys.readouterr().out.splitlines()[2:]
    left = ["nothing was uploaded"] if answer is not None else ["", "nothing was uploaded"]
    assert agreed or last == left


def test_a_dry_run_asks_no_hub(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    prepared = Prepared(None, NEW)
    run(prepared, monkeypatch, "--dry-run")
    assert prepared.asked == []
    assert capsys.readouterr().out.startswith("seen\n")


def test_only_a_dry_run_needs_no_name() -> None:
    with pytest.raises(RecipeError, match=r"soup: .*OWNER/NAME.*--dry-run"):
        publish_verb.run(parser().parse_args(["soup"]), "plugins")  # type: ignore[arg-type]


# ── the step ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("upload", [True, False])
def test_a_step_uploads_where_it_was_asked_to_and_records_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upload: bool
) -> None:
    prepared = Prepared("c0", NEW)
    given: list[Any] = []
    monkeypatch.setattr("emberge_publish.prepare.prepare", lambda *a: given.extend(a) or prepared)
    warned: list[str] = []
    progress: list[Any] = []
    workspace: Any = SimpleNamespace(
        folder=tmp_path,
        store=Path(".store"),
        plugins="plugins",
        model=lambda reference: SimpleNamespace(
            name=str(reference), folder=Path(str(reference).strip("$"))
        ),
        warn=warned.append,
        progress=lambda *args: progress.append(args),
    )
    step = Publish(
        model=ModelRef("$soup", Path("here")),
        name="me/soup",
        upload=upload,
        private=True,
        replace=True,
        licence="mit",
    )
    assert step.uploads_to() == (("me/soup",) if upload else ())
    made = step.run(workspace)
    choices = Choices(name="me/soup", private=True, replace=True, licence="mit")
    assert given == [Path("soup"), choices]
    assert warned == ["a note"]
    facts: dict[str, Any] = {
        "name": "me/soup",
        "licence": "mit",
        "uploaded": False,
        "table": "published.md",
    }
    table = (tmp_path / "published.md").read_text()
    if upload:
        commit, url = "0123456789abcdef", "https://hub/me/soup"
        facts |= {"uploaded": True, "commit": commit, "url": url, "files": 1, "size": 2}
        assert prepared.asked == ["token", "free", "upload"]
        assert progress == [(0, 2, "files"), (2, 2, "files")]
        assert table == "```text\none\ntwo\n```\n"
    else:
        assert not prepared.asked
        assert not progress
        assert table.startswith("me/soup: 2 files, licence mit\n\n| a table |\n\n")
        assert table.endswith(
            "\n\n```bash\nemberge publish --dry-run soup me/soup --private --replace --licence mit\n```\n"
        )
    assert made == Artifact(kind="file", parents=("$soup",), details=facts)


def test_a_model_whose_gate_is_not_met_is_not_even_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing is gathered")

    monkeypatch.setattr("emberge_publish.prepare.prepare", refuse)
    unmet = {"$scores": ["a is to be better", "b too"], "$limits": [], "$quiet": None}
    warned: list[str] = []
    workspace: Any = SimpleNamespace(
        folder=tmp_path,
        warn=warned.append,
        artifact=lambda reference: (
            tmp_path,
            Artifact(
                "scores",
                details={} if unmet[str(reference)] is None else {"unmet": unmet[str(reference)]},
            ),
        ),
    )
    after = tuple(StepRef(name) for name in unmet)
    made = Publish(model=ModelRef("$soup"), name="me/soup", after=after, upload=True).run(workspace)
    claims = ["scores: not met: a is to be better", "scores: not met: b too"]
    assert warned == [f"not published: {claim}" for claim in claims]
    assert (made.details["uploaded"], made.details["not_met"]) == (False, claims)
    text = (tmp_path / "published.md").read_text()
    assert text == "".join(f"- not published: {claim}\n" for claim in claims)


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
