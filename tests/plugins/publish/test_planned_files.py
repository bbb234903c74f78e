"""What a publication compares, shows and waits for, without a hub."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError, RecipeError
from emberge.wording import NAME_REMARK
from emberge_publish.hub_repository import FileOnHub, HubError, Remote, Repository
from emberge_publish.prepare import choose_files, complete_card, list_left_notes
from emberge_publish.publication import Choices, PlannedFile, Publication, plan_files, shown_size
from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status

from tests.support.publishing import git_blob

# The HTTP library of the hub's client, whichever its release has.
httpx: Any = importlib.import_module(type(get_session()).__module__.partition(".")[0])


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


def publication(**choices: Any) -> Publication:
    return Publication(
        Choices(name="me/soup", **choices),
        Repository("me/soup"),
        {},
        "mit",
        ("a note",),
    )


PLANNED = [
    PlannedFile("a", 1_000, "new"),
    PlannedFile("long/name", 20, "changed"),
    PlannedFile("same", 7, "same"),
    PlannedFile("gone", 9_000, "removed"),
]


def test_the_list_shows_each_file_and_counts_what_is_sent(tmp_path: Path) -> None:
    found = publication()
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
    assert "(will be created, private)" in next(publication(private=True).lines(PLANNED, Remote()))
    assert "(is there)" in next(found.lines(PLANNED, Remote("c")))


def test_content_of_others_is_lost_only_where_that_was_asked_for(tmp_path: Path) -> None:
    for lost in ("changed", "removed"):
        one = [PlannedFile("config.json", 1, lost), PlannedFile("b", 1, "new")]  # type: ignore[arg-type]
        with pytest.raises(RecipeError, match=r"\(config\.json\).*--replace"):
            publication().require_free(one)
        publication(replace=True).require_free(one)
    publication().require_free([PlannedFile("a", 1, "new"), PlannedFile("b", 1, "same")])


def test_files_are_chosen_by_the_record_and_links_are_none(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    for name in ("config.json", "1_Pooling/config.json", "README.md", "artifact.json", "x.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "logs").mkdir()
    (folder / "logs" / "1.txt").write_text("")
    record = {"files": {"config.json": {}, "1_Pooling/config.json": {}, "logs/1.txt": {}}}
    found = choose_files(folder, record)
    assert dict(found.files) == {
        name: folder / name
        for name in ("config.json", "1_Pooling/config.json", "README.md", "artifact.json")
    }
    assert found.unpublished == ("x.txt",)
    assert list_left_notes(()) == []
    assert list_left_notes(("x",)) == ["not uploaded, as artifact.json does not name them: x"]
    (folder / "extra").symlink_to(tmp_path)
    assert choose_files(folder, record).unpublished == ("extra", "x.txt")
    for name in ("README.md", "more2"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path)
        named = {"files": {**record["files"], "more2/a": {}}}
        with pytest.raises(CheckpointError, match=rf"{name}: is a link"):
            choose_files(folder, named)
        (folder / name).unlink()


@pytest.mark.parametrize(
    "call",
    [
        "SentenceTransformer({})",
        "SentenceTransformer({}, trust_remote_code=True)",
        "PeftModel.from_pretrained(base, {})",
    ],
)
def test_a_card_loads_the_model_by_its_name_on_the_hub(call: str) -> None:
    head, line = "---\ntags: [a]\n---\n\n", f"model = {call}"
    before, after = line.format('"soup"'), line.format('"me/other"')
    found = complete_card(
        f"{head}# soup\n\n{before}{NAME_REMARK}\nprint('soup')\n", "soup", Choices(name="me/other")
    )
    assert found == f"{head}# other\n\n{after}\nprint('soup')\n"


# ── answers of a hub ────────────────────────────────────────────────────────────────────────────────


def failing(status: int) -> Callable[[], None]:
    """Return a call that ends with the answer `status` of a hub."""

    def call() -> None:
        request = httpx.Request("GET", "https://hub")
        hf_raise_for_status(httpx.Response(status, request=request))

    return call


def test_an_answer_of_the_hub_is_said_with_the_remedy_and_a_bug_is_not_hidden() -> None:
    for status, words in {
        **{401: "hf auth login", 403: "write access", 404: "later", 409: "changed meanwhile"},
        **{412: "changed meanwhile", 429: "later", 503: "later"},
    }.items():
        with pytest.raises(HubError) as caught:
            Repository("me/soup")._call_hub(failing(status))
        assert words in str(caught.value), status
        assert str(caught.value).startswith(f"me/soup: the hub answered {status} ")
        assert "\n" not in str(caught.value)

    def fail(error: Exception) -> None:
        raise error

    for error in (httpx.ConnectError("no route"), OSError("disk"), RuntimeError("upload")):
        with pytest.raises(HubError, match=rf"broke off \({error}\)"):
            Repository("me/soup")._call_hub(lambda error=error: fail(error))
    for bug in (KeyError("bug"), RecipeError("own")):
        with pytest.raises(type(bug)):
            Repository("me/soup")._call_hub(lambda bug=bug: fail(bug))


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
