"""What a publication compares, shows and waits for, without a hub."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError, RecipeError
from emberge.contracts import BoardEntry
from emberge_publish.hub_repository import FileOnHub, HubError, Remote, Repository
from emberge_publish.licences import Terms
from emberge_publish.prepare import choose_files, left_notes
from emberge_publish.publication import Choices, PlannedFile, Publication, plan_files, shown_size

from tests.support.publishing import git_blob


def large(content: bytes) -> FileOnHub:
    return FileOnHub(len(content), "pointer", hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("in_file", [False, True])
def test_a_file_is_the_same_by_the_hash_that_the_hub_has(tmp_path: Path, in_file: bool) -> None:
    content = b"abc" * 700_000  # more than one piece
    (tmp_path / "f").write_bytes(content)
    mine: Any = tmp_path / "f" if in_file else content
    other = b"abd" + content[3:]
    for there, state in (
        (FileOnHub(len(content), git_blob(content)), "same"),
        (FileOnHub(len(content), git_blob(other)), "changed"),
        (FileOnHub(len(content) + 1, git_blob(content)), "changed"),
        (large(content), "same"),
        (large(other), "changed"),
        (FileOnHub(len(content), git_blob(content), "0" * 64), "changed"),
    ):
        assert plan_files({"f": mine}, Remote("c", {"f": there})) == [
            PlannedFile("f", len(content), state)  # type: ignore[arg-type]
        ]


def test_new_files_and_those_that_only_the_hub_has_are_planned() -> None:
    remote = Remote("c", {"old.txt": FileOnHub(5, "b"), ".gitattributes": FileOnHub(9, "b")})
    assert plan_files({"new.txt": b"xy"}, remote) == [
        PlannedFile("new.txt", 2, "new"),
        PlannedFile("old.txt", 5, "removed"),
    ]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (90_900_000, "90.9 MB"),
        (999_000_000, "999 MB"),
        (4.56e9, "4.56 GB"),
        (1.2e12, "1.2e+03 GB"),
    ],
)
def test_sizes_are_shown_in_three_digits(size: float, shown: str) -> None:
    assert shown_size(size) == shown


def publication(tmp_path: Path, **choices: Any) -> Publication:
    return Publication(
        Choices(name="me/soup", **choices),
        Repository("me/soup"),
        tmp_path,
        {},
        Terms("mit"),
        None,  # type: ignore[arg-type]
        BoardEntry(name="me/soup", date="2026-01-02", licence="mit", dimension=None, reference=""),
        ("a note",),
        None,  # type: ignore[arg-type]
    )


PLANNED = [
    PlannedFile("a", 1_000, "new"),
    PlannedFile("long/name", 20, "changed"),
    PlannedFile("same", 7, "same"),
    PlannedFile("gone", 9_000, "removed"),
]


def test_the_list_shows_each_file_and_counts_what_is_sent(tmp_path: Path) -> None:
    found = publication(tmp_path)
    first, *rows, count, note = found.lines(PLANNED, Remote())
    assert first.endswith("/me/soup (will be created, public), licence mit")
    assert [row.split() for row in rows] == [
        ["a", "1", "kB", "new"],
        ["long/name", "20", "B", "changed"],
        ["same", "7", "B", "same"],
        ["gone", "9", "kB", "removed"],
    ]
    assert len({len(row.rsplit("  ", 1)[0]) for row in rows}) == 1, "columns are as wide as names"
    assert count == "2 of 4 files to send, 1.02 kB"
    assert note == "note: a note"
    assert "(will be created, private)" in next(
        publication(tmp_path, private=True).lines(PLANNED, Remote())
    )
    assert "(is there)" in next(found.lines(PLANNED, Remote("c")))


def test_content_of_others_is_lost_only_where_that_was_asked_for(tmp_path: Path) -> None:
    for lost in ("changed", "removed"):
        one = [PlannedFile("config.json", 1, lost), PlannedFile("b", 1, "new")]  # type: ignore[arg-type]
        with pytest.raises(RecipeError, match=r"\(config\.json\).*--replace"):
            publication(tmp_path).require_free(one)
        publication(tmp_path, replace=True).require_free(one)
    publication(tmp_path).require_free([PlannedFile("a", 1, "new"), PlannedFile("b", 1, "same")])
    assert publication(tmp_path).write_board(tmp_path / "board", None) == []


def test_files_are_chosen_by_the_record_and_links_are_none(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    for name in ("config.json", "1_Pooling/config.json", "README.md", "artifact.json", "x.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "bags").mkdir()
    (folder / "bags" / "1.txt").write_text("")
    record = {"files": {"config.json": {}, "1_Pooling/config.json": {}, "bags/1.txt": {}}}
    found = choose_files(folder, record)
    assert dict(found.files) == {
        name: folder / name
        for name in ("config.json", "1_Pooling/config.json", "README.md", "artifact.json")
    }
    assert found.unpublished == ("x.txt",)
    assert [*left_notes(())] == []
    assert [*left_notes(("x\x1b",))] == [
        "not uploaded, as artifact.json does not name them: x\\x1b"
    ]
    (folder / "extra").symlink_to(tmp_path)
    assert choose_files(folder, record).unpublished == ("extra", "x.txt")
    for name in ("README.md", "bags2"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path)
        named = {"files": {**record["files"], "bags2/a": {}}}
        with pytest.raises(CheckpointError, match=rf"{name}: is a link"):
            choose_files(folder, named)
        (folder / name).unlink()


# ── answers of a hub ────────────────────────────────────────────────────────────────────────────────


class AnswerError(Exception):
    """An error of the hub's client with an answer."""

    def __init__(self, status: int, after: str = "", text: str = "first\nsecond") -> None:
        super().__init__(text)
        self.response = SimpleNamespace(status_code=status, headers={"Retry-After": after})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


def fails(*errors: Exception) -> Any:
    """A call that fails once for each error, and then answers."""
    left = [*errors]

    def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return call


@pytest.mark.parametrize(
    ("errors", "seconds"),
    [
        ((AnswerError(429),), [1.0]),
        ((AnswerError(503), AnswerError(500)), [1.0, 2.0]),
        ((AnswerError(429, "7"),), [7.0]),
        ((AnswerError(429, "9999"),), [120.0]),
        ((AnswerError(429, "soon"),), [1.0]),
        ((), []),
    ],
)
def test_a_hub_that_is_busy_is_asked_again_after_a_while(
    errors: tuple[Exception, ...], seconds: list[float], waits: list[float]
) -> None:
    assert Repository("me/soup")._call_hub(fails(*errors)) == "answer"
    assert waits == seconds


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "log in again"),
        (403, "write access for 'me'"),
        (404, "no such place"),
        (409, "changed meanwhile"),
        (412, "changed meanwhile"),
        (418, "answered 418: first"),
    ],
)
def test_an_answer_that_stays_is_said_at_once(status: int, words: str, waits: list[float]) -> None:
    with pytest.raises(HubError) as caught:
        Repository("me/soup")._call_hub(fails(AnswerError(status)))
    assert words in str(caught.value)
    assert str(caught.value).startswith("me/soup: ")
    assert "second" not in str(caught.value)
    assert not waits


def test_a_hub_that_stays_busy_is_asked_three_times(waits: list[float]) -> None:
    with pytest.raises(HubError, match=r"429.*later"):
        Repository("me/soup")._call_hub(fails(*(AnswerError(429) for _ in range(3))))
    assert waits == [1.0, 2.0]
    with pytest.raises(HubError, match="429"):
        Repository("me/soup")._call_hub(fails(*(AnswerError(429) for _ in range(9))))


def test_a_broken_connection_is_tried_again_and_a_bug_is_not(waits: list[float]) -> None:
    broken = type("ConnectError", (Exception,), {"__module__": "httpx._exceptions"})("no route")
    assert Repository("me/soup")._call_hub(fails(broken)) == "answer"
    wrapped = RuntimeError("upload")
    wrapped.__cause__ = broken
    assert Repository("me/soup")._call_hub(fails(wrapped)) == "answer"
    assert waits == [1.0, 1.0]
    with pytest.raises(HubError, match="broke off \\(OSError: disk\\)"):
        Repository("me/soup")._call_hub(fails(OSError("disk")))
    with pytest.raises(KeyError):
        Repository("me/soup")._call_hub(fails(KeyError("bug")))
    with pytest.raises(RecipeError, match="own"):
        Repository("me/soup")._call_hub(fails(RecipeError("own")))
    inner = RuntimeError("outer")
    inner.__cause__ = AnswerError(403)
    with pytest.raises(HubError, match="403"):
        Repository("me/soup")._call_hub(fails(inner))


def test_a_commit_names_its_parent_and_has_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    def create_commit(name: str, operations: list[Any], **more: Any) -> Any:
        sent.update(more, name=name, paths=[(type(o).__name__, o.path_in_repo) for o in operations])
        return SimpleNamespace(oid="new")

    repository = Repository("me/soup")
    monkeypatch.setattr(repository.api, "create_commit", create_commit)
    assert repository.commit({"a": b"x"}, ["b"], "old") == "new"
    assert sent["parent_commit"] == "old"
    assert sent["name"] == "me/soup"
    assert sent["paths"] == [("CommitOperationAdd", "a"), ("CommitOperationDelete", "b")]
    assert "emberge" in sent["commit_message"]


@pytest.mark.parametrize("name", ["soup", "a/b/c", "/soup", "me/", "me/so up", "../soup", ""])
def test_a_name_is_owner_and_name(name: str) -> None:
    with pytest.raises(RecipeError, match="owner/name"):
        Repository(name)
