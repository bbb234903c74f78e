"""The verb and the step `publish` without a hub: options, what is shown, asked, sent and written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import Artifact, ModelRef, RecipeError, StepRef
from emberge.cli import arguments
from emberge.contracts import BoardEntry
from emberge_publish import publish_verb
from emberge_publish.hooks import register_verbs
from emberge_publish.hub_repository import FileOnHub, HubError, Remote
from emberge_publish.publication import Choices, PlannedFile, Publication, Published, plan_files
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
        "[--licence-of PARENT=ID] [--state SECTION=TEXT] [--inputs FOLDER] [--mteb FOLDER] [--yes] DIR "
        "[OWNER/NAME]"
    )
    plain = {
        "folder": Path("soup"),
        "name": "me/soup",
        "private": False,
        "replace": False,
        "licence": None,
        "licence_of": [],
        "state": [],
        "inputs": Path(),
        "mteb": None,
        "yes": False,
        "dry_run": False,
    }
    assert vars(parser().parse_args(["soup", "me/soup"])) == plain
    with pytest.raises(SystemExit):
        parser().parse_args(["--dry-run", "--yes", "soup"])
    dry = {**plain, "name": None, "dry_run": True}
    assert vars(parser().parse_args(["--dry-run", "soup"])) == dry
    words = "--private --replace --licence mit --licence-of a=b --licence-of c=d --inputs i --mteb m --yes"
    assert vars(parser().parse_args(["soup", "me/soup", *words.split()])) == {
        **plain,
        "private": True,
        "replace": True,
        "licence": "mit",
        "licence_of": ["a=b", "c=d"],
        "inputs": Path("i"),
        "mteb": Path("m"),
        "yes": True,
    }


# ── the verb ────────────────────────────────────────────────────────────────────────────────────────


class Prepared:
    """A publication in the place of a real one: it notes what it is asked for."""

    def __init__(self, commit: str | None, planned: Sequence[PlannedFile]) -> None:
        self.remote, self.states = Remote(commit), list(planned)
        self.files = {"b": b"", "a": b""}
        self.notes = ["a note"]
        self.terms = SimpleNamespace(licence="mit")
        self.ancestors = SimpleNamespace(bases=["acme/a"])
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

    def write_board(self, out: Path, commit: str) -> list[str]:
        self.asked.append((out, commit))
        return ["a.py"]


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
    words = [
        "--yes",
        "--private",
        "--replace",
        "--licence",
        "mit",
        "--inputs",
        "here",
        "--mteb",
        "m",
    ]
    given = run(prepared, monkeypatch, *words, "--licence-of", "./a=b=mit", "--licence-of", "c=d")
    choices = Choices(
        name="me/soup",
        private=True,
        replace=True,
        licence="mit",
        licences={"./a=b": "mit", "c": "d"},
    )
    assert given == [Path("soup"), choices, "plugins", Path("here")]
    assert prepared.asked == ["token", "free", "upload", (Path("m"), "0123456789abcdef")]
    assert capsys.readouterr().out.splitlines() == [
        "one",
        "two",
        "published: https://hub/me/soup at 0123456789ab",
        f"written: {Path('m', 'a.py')}",
    ]


def test_where_the_hub_has_it_all_only_the_leaderboards_files_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    prepared = Prepared("c0", SAME)
    given = run(prepared, monkeypatch, "--mteb", "m")
    assert given[1:] == [Choices(name="me/soup"), "plugins", Path()]
    assert prepared.asked == ["token", "free", (Path("m"), "c0")]
    *_, nothing, written = capsys.readouterr().out.splitlines()
    assert nothing.startswith("nothing to upload")
    assert written == f"written: {Path('m', 'a.py')}"
    prepared = Prepared("c0", SAME)
    run(prepared, monkeypatch)
    assert prepared.asked == ["token", "free"], "no leaderboard without its folder"
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
    given = run(prepared, monkeypatch, "--dry-run")
    assert given[4]("acme/a", None) is None, "cards of a hub are not downloaded"
    assert prepared.asked == []
    assert capsys.readouterr().out.startswith("seen\n")


def test_only_a_dry_run_needs_no_name() -> None:
    with pytest.raises(RecipeError, match=r"soup: .*OWNER/NAME.*--dry-run"):
        publish_verb.run(parser().parse_args(["soup"]), "plugins")  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["mit", "=mit", "./a="])
def test_a_stated_licence_is_a_name_and_an_id(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    with pytest.raises(RecipeError, match=f"--licence-of {word}: .*PARENT=ID"):
        run(Prepared(None, NEW), monkeypatch, "--licence-of", word)


def test_statements_go_to_sections_of_the_summary_of_training_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Choices] = []
    prepared = Prepared(None, NEW)

    def prepare(_: Path, choices: Choices, *__: object) -> Prepared:
        given.append(choices)
        return prepared

    monkeypatch.setattr(publish_verb, "prepare", prepare)
    words = ["soup", "me/soup", "--dry-run", "--state", "1.1=Acme = Berlin", "--state", "3.2=none"]
    assert publish_verb.run(parser().parse_args(words), "plugins") == 0  # type: ignore[arg-type]
    assert given[0].statements == {"1.1": "Acme = Berlin", "3.2": "none"}


@pytest.mark.parametrize(
    ("word", "fix"), [("1.1", "SECTION=TEXT"), ("1.1=", "SECTION=TEXT"), ("9=a", "it has 1.1, ")]
)
def test_a_statement_is_a_section_and_a_text(
    monkeypatch: pytest.MonkeyPatch, word: str, fix: str
) -> None:
    with pytest.raises(RecipeError, match=f"--state.*{fix}"):
        run(Prepared(None, NEW), monkeypatch, "--state", word)


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
        licences={"./a": "mit"},
        statements={"3.2": "none"},
    )
    assert step.uploads_to() == (("me/soup",) if upload else ())
    made = step.run(workspace)
    choices = Choices(
        name="me/soup",
        private=True,
        replace=True,
        licence="mit",
        licences={"./a": "mit"},
        statements={"3.2": "none"},
    )
    assert given == [Path("soup"), choices, "plugins", Path("here")]
    assert warned == ["a note"]
    facts: dict[str, Any] = {
        "name": "me/soup",
        "licence": "mit",
        "bases": ["acme/a"],
        "uploaded": False,
        "table": "published.md",
    }
    board = tmp_path / "mteb"
    table = (tmp_path / "published.md").read_text()
    if upload:
        commit, url = "0123456789abcdef", "https://hub/me/soup"
        facts |= {"uploaded": True, "commit": commit, "url": url, "files": 1, "size": 2}
        assert prepared.asked == ["token", "free", "upload", (board, commit)]
        assert progress == [(0, 2, "files"), (2, 2, "files")]
        assert table == "```text\none\ntwo\n```\n"
    else:
        assert prepared.asked == [(board, None)]
        assert not progress
        assert table.startswith("me/soup: 2 files, licence mit\n\n| a table |\n\n")
        assert table.endswith(
            "\n\n```bash\nemberge publish --dry-run soup me/soup --private --replace --licence mit "
            "--licence-of ./a=mit --state 3.2=none --inputs here\n```\n"
        )
    assert made == Artifact(kind="file", parents=("$soup",), details=facts)
    written = (tmp_path / "published.json").read_text()
    assert json.loads(written) == {**facts, "files": ["a", "b"]}
    assert written.startswith('{\n "name": "me/soup",\n')
    assert written.endswith("\n}\n")


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
    assert json.loads((tmp_path / "published.json").read_text()) == made.details
    text = (tmp_path / "published.md").read_text()
    assert text == "".join(f"- not published: {claim}\n" for claim in claims)


@pytest.mark.parametrize("token", ["", "hf_x"])
def test_a_step_warns_before_the_run_where_nobody_is_logged_in(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    monkeypatch.setattr(Publish, "_check_licences", lambda *_: iter(()))
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
    assert (plain.licence, plain.licences, plain.uploads_to()) == (None, {}, ())


# ── the upload ──────────────────────────────────────────────────────────────────────────────────────


def remote_of(commit: str, files: Mapping[str, bytes]) -> Remote:
    return Remote(commit, {p: FileOnHub(len(b), git_blob(b)) for p, b in files.items()})


class Hub:
    """A repository in memory; `lost` are the paths whose bytes it does not keep."""

    name, url = "me/soup", "https://hub/me/soup"

    def __init__(self, at_creation: Remote | None = None, lost: Sequence[str] = ()) -> None:
        self.at_creation, self.lost = at_creation, lost
        self.files: dict[str, bytes] = {}
        self.asked: list[Any] = []

    def create(self, private: bool) -> Remote:
        self.asked.append(("create", private))
        return self.at_creation or Remote("first")

    def commit(self, files: Mapping[str, bytes], removed: Sequence[str], parent: str) -> str:
        self.asked.append(("commit", dict(files), removed, parent))
        self.files = {p: b"" if p in self.lost else b for p, b in {**self.files, **files}.items()}
        self.files = {p: b for p, b in self.files.items() if p not in removed}
        return "0123456789abcdef"

    def read_state(self, revision: str) -> Remote:
        self.asked.append(("look", revision))
        return remote_of(revision, self.files)


ENTRY = BoardEntry(name="me/soup", date="2026-01-02", licence="mit", dimension=4, reference="")


def publication(hub: Hub, folder: Path = Path(), plugins: Any = None, **more: Any) -> Publication:
    board = ENTRY
    files = {"a": b"xyz", "b": b"1234"}
    choices = Choices(name="me/soup", **more)
    terms = ancestors = None
    return Publication(choices, hub, folder, files, terms, ancestors, board, (), plugins)  # type: ignore[arg-type]


@pytest.mark.parametrize("private", [False, True])
def test_a_new_repository_gets_all_files_in_one_commit(private: bool) -> None:
    hub = Hub()
    mine = publication(hub, private=private)
    done = mine.upload(mine.planned(Remote()), Remote())
    assert done == Published("0123456789abcdef", "https://hub/me/soup", 2, 7)
    assert hub.asked == [
        ("create", private),
        ("commit", {"a": b"xyz", "b": b"1234"}, [], "first"),
        ("look", "0123456789abcdef"),
    ]


def test_only_what_differs_is_sent_and_removed_on_the_commit_that_was_seen() -> None:
    hub = Hub()
    hub.files = {"a": b"abc", "b": b"1234", "gone": b"x"}
    seen = remote_of("old", hub.files)
    mine = publication(hub, replace=True)
    assert mine.upload(mine.planned(seen), seen) == Published("0123456789abcdef", hub.url, 1, 3)
    assert hub.asked == [
        ("commit", {"a": b"xyz"}, ["gone"], "old"),
        ("look", "0123456789abcdef"),
    ]
    hub.files["gone"] = b"x"
    seen, hub.asked = remote_of("more", hub.files), []
    assert mine.upload(mine.planned(seen), seen) == Published("0123456789abcdef", hub.url, 0, 0)
    assert hub.asked[0] == ("commit", {}, ["gone"], "more")
    seen, hub.asked = remote_of("equal", hub.files), []
    assert mine.upload(mine.planned(seen), seen) == Published("equal", hub.url, 0, 0)
    assert hub.asked == [("look", "equal")]


def test_a_repository_of_somebody_faster_is_not_overwritten() -> None:
    hub = Hub(at_creation=remote_of("theirs", {"a": b"other"}))
    mine = publication(hub)
    with pytest.raises(RecipeError, match=r"me/soup: .*\(a\).*--replace"):
        mine.upload(mine.planned(Remote()), Remote())
    assert [kind for kind, *_ in hub.asked] == ["create"]


def test_bytes_that_the_hub_did_not_keep_are_named() -> None:
    mine = publication(Hub(lost=["b"]))
    with pytest.raises(HubError, match=r"^me/soup: at commit 0123456789ab .* of b; .*--replace"):
        mine.upload(plan_files(mine.files, Remote()), Remote())


def test_the_leaderboards_entry_is_written_for_an_embedding_model(tmp_path: Path) -> None:
    asked: list[Any] = []

    def write(*given: Any) -> list[str]:
        asked.append(given)
        return ["me__soup.py"]

    boards = [SimpleNamespace(write_entry=write)]
    plugins = SimpleNamespace(every=lambda kind: boards if kind == "leaderboard" else [])
    folder, out = tmp_path / "soup", tmp_path / "boards" / "mine"
    folder.mkdir()
    mine = publication(Hub(), folder, plugins)
    assert mine.write_board(out, "c1") == []
    assert not out.exists()
    (folder / "modules.json").write_text("[]")
    assert mine.write_board(out, "c1") == ["me__soup.py"]
    assert asked == [(out, folder, replace(ENTRY, revision="c1"))]
    assert out.is_dir()
    boards.clear()
    assert mine.write_board(out, None) == []
