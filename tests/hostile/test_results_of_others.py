"""Work and results that another user left or somebody changed: none is continued, skipped or published."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from emberge import run_recipe
from emberge.cli.main import main
from emberge.errors import CheckpointError, EmbergeError
from emberge.files import NotOursError, fill_once, ours
from emberge.hashes import LARGE, UserHashes
from emberge.numerics import compare_kernels, tested_kernels
from emberge.recipes.run.run_step import run_step
from emberge.results import require_sound_result
from emberge.results.run_folder import UnsoundResultError
from emberge.training import latest_state, save_state
from emberge.training.loop.checkpoints import MANIFEST, TENSORS

from tests.support.compiled import require_kernels
from tests.support.steps import RAN, Write, recipe, toy

STRANGER = 54321


def run(place: Path, **options: object) -> None:
    run_recipe(recipe(a=Write(**options)), place, toy())  # type: ignore[arg-type]


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file or folder another user's; who is not root becomes another user on this disk instead."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        return
    real, mine = ours._require_owner, path.lstat().st_ino

    def checked(place: Path, status: os.stat_result) -> None:
        if status.st_ino == mine:
            raise NotOursError(f"{place}: belongs to another user; choose another --out")
        real(place, status)

    monkeypatch.setattr(ours, "_require_owner", checked)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished run of one step, a model."""
    place = tmp_path / "out"
    run(place, checkpoints=(1,))
    return place


def rerun(place: Path) -> None:
    RAN.clear()
    run(place, checkpoints=(1,))


# ── finished results ────────────────────────────────────────────────────────────────────────────


def change(result: Path) -> None:
    (result / "config.json").write_text('{"text": "y"}')


def change_kept(result: Path) -> None:
    (result / "checkpoints" / "step-1" / "config.json").write_text("{}")


def remove(result: Path) -> None:
    (result / "config.json").unlink()


def link(result: Path) -> None:
    (result / "config.json").rename(result.parent / "elsewhere.json")
    (result / "config.json").symlink_to(result.parent / "elsewhere.json")


def add(result: Path) -> None:
    (result / "model.safetensors").write_bytes(b"planted")


def forge_record(result: Path) -> None:
    record = json.loads((result / "artifact.json").read_text())
    record["files"] = {"../../thesis.tex": record["files"]["config.json"]}
    (result / "artifact.json").write_text(json.dumps(record))


def drop_record(result: Path) -> None:
    record = json.loads((result / "artifact.json").read_text())
    del record["files"]
    (result / "artifact.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (change, "config.json was changed"),
        (change_kept, "checkpoints/step-1/config.json was changed"),
        (remove, "config.json is missing"),
        (link, "config.json is missing"),
        (add, "model.safetensors was added"),
        (forge_record, "artifact.json"),
        (drop_record, "artifact.json"),
    ],
)
def test_a_result_that_is_not_as_its_step_left_it_is_not_skipped(
    out: Path, harm: Callable[[Path], None], named: str
) -> None:
    result = (out / "a").resolve()
    harm(result)
    with pytest.raises(UnsoundResultError, match=named) as caught:
        rerun(out)
    assert str(result) in str(caught.value)
    assert RAN == []
    shutil.rmtree(result)
    rerun(out)
    assert RAN == ["a"]


def test_a_change_that_keeps_size_and_time_is_found(out: Path) -> None:
    rerun(out)
    file = (out / "a").resolve() / "config.json"
    before = file.stat()
    file.write_bytes(bytes(len(file.read_bytes())))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UnsoundResultError):
        rerun(out)


def test_what_completes_a_result_later_may_change(out: Path) -> None:
    result = (out / "a").resolve()
    (result / "README.md").write_text("a card with newer scores")
    (result / "notes.txt").write_text("mine")
    rerun(out)
    assert RAN == []


def test_a_finished_run_again_reads_no_file_twice(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (out / "a").resolve().rglob("*"):
        os.utime(path, (1, 1))
    rerun(out)
    monkeypatch.setattr("emberge.hashes._FRESH_NANOSECONDS", 0)
    rerun(out)  # by now every file is known, however fresh it was

    def refuse(file: Path) -> str:
        raise AssertionError(f"{file} is read again")

    monkeypatch.setattr("emberge.hashes._hash_file", refuse)
    rerun(out)
    assert RAN == []


@pytest.mark.parametrize("name", ["", "config.json", "checkpoints/step-1", "artifact.json"])
def test_a_result_of_another_user_is_not_skipped(
    out: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    give_away((out / "a").resolve() / name, monkeypatch)
    with pytest.raises(NotOursError, match=r"another user.*--out"):
        rerun(out)
    assert RAN == []


def test_a_result_that_everybody_may_write_to_is_not_skipped(out: Path) -> None:
    (out / "a").resolve().chmod(0o777)
    with pytest.raises(NotOursError, match="chmod"):
        rerun(out)


def test_a_folder_without_a_record_has_nothing_to_compare(bert: Path) -> None:
    before = sorted(bert.rglob("*"))
    require_sound_result(bert)
    assert sorted(bert.rglob("*")) == before


# ── work to be continued ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run that was interrupted in its step: the step's work folder."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", stop_at=2)
    (work,) = (tmp_path / "out" / ".work").iterdir()
    return work


@pytest.mark.parametrize("name", ["", "done", "output"])
def test_work_of_another_user_is_not_continued(
    begun: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    give_away(begun / name, monkeypatch)
    RAN.clear()
    with pytest.raises(NotOursError, match="another user"):
        run(begun.parents[1], stop_at=2)
    assert RAN == []


def test_links_in_work_are_removed_and_not_followed(begun: Path, tmp_path: Path) -> None:
    """Libraries leave links for people, such as one to the newest log."""
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("a year of work")
    for name in ("latest", "progress.json", ".metrics.jsonl", "output/config.json"):
        (begun / name).unlink(missing_ok=True)
        (begun / name).symlink_to(thesis)
    run(begun.parents[1], stop_at=2)
    assert thesis.read_text() == "a year of work"
    assert not (begun.parents[1] / "a" / "config.json").is_symlink()


def test_a_work_folder_that_is_a_link_is_refused(begun: Path, tmp_path: Path) -> None:
    begun.rename(tmp_path / "elsewhere")
    begun.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotOursError, match="is a link to"):
        run(begun.parents[1], stop_at=2)


@pytest.mark.parametrize("planted", ["files", "a name without a file", "another file"])
def test_a_training_state_is_taken_only_with_its_recorded_hash(
    tmp_path: Path, planted: str
) -> None:
    import torch

    save_state(tmp_path, 1, {"w": torch.zeros(2)}, {})
    manifest = tmp_path / "step-1" / MANIFEST
    content = json.loads(manifest.read_text())
    if planted == "files":
        content["files"] = {}
    elif planted == "another file":
        content["files"] = {MANIFEST: content["files"][TENSORS]}
    else:
        content["files"]["none"] = content["files"][TENSORS]
    manifest.write_text(json.dumps(content))
    assert latest_state(tmp_path) is None


# ── merges of one command ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def words(berts: list[Path], tmp_path: Path) -> list[str]:
    """A merge of two models into `merged`."""
    models = [str(path) for path in berts[:2]]
    return ["merge", *models, "--strategy", "linear", "--out", str(tmp_path / "merged"), "--quiet"]


@pytest.fixture
def finished(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hidden folder of that merge, killed after the work and before the model got its name."""
    with monkeypatch.context() as patched:
        patched.setattr("emberge.recipes.one_merge.publish", _interrupted)
        assert main(words) == 130
    return tmp_path / ".merged.merging"


def test_a_merge_takes_nothing_from_a_hidden_folder_of_another_user(
    words: list[str],
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give_away(finished, monkeypatch)
    assert main(words) == 2
    assert f"{finished}: belongs to another user" in capsys.readouterr().err
    assert not (finished.parent / "merged").exists()
    assert finished.is_dir(), "it is not ours to remove"


def test_a_merge_publishes_no_weights_that_were_planted_in_its_hidden_folder(
    words: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = finished.glob("merged-*/model.safetensors")
    weights.write_bytes(bytes(weights.stat().st_size))
    assert main(words) == 2
    assert "model.safetensors was changed" in capsys.readouterr().err
    assert list(finished.parent.iterdir()) == []
    assert main(words) == 0


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_merge_that_was_interrupted_after_its_work_ends_well(
    words: list[str], finished: Path
) -> None:
    assert main(words) == 0
    assert [path.name for path in finished.parent.iterdir()] == ["merged"]


def test_a_merge_that_failed_for_good_leaves_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the same command cannot go on from it: a file that is missing, or may not be read."""

    def fails(*_: object) -> None:
        try:
            (tmp_path / "none").read_bytes()
        except OSError as error:
            raise CheckpointError("none: cannot be read") from error

    monkeypatch.setattr("emberge.recipes.run.run_steps.run_step", fails)
    assert main(words) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_merge_whose_disk_failed_goes_on_from_its_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        run_step(*arguments)  # type: ignore[arg-type]
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise EmbergeError("the disk is full") from error

    with monkeypatch.context() as patched:
        patched.setattr("emberge.recipes.run.run_steps.run_step", fails)
        assert main(words) == 1
    assert [path.name for path in tmp_path.iterdir()] == [".merged.merging"]
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


@pytest.mark.parametrize("what", ["foreign", "changed"])
def test_neither_of_them_is_published(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    assert main(words) == 0
    weights = tmp_path / "merged" / "model.safetensors"
    if what == "foreign":
        give_away(weights, monkeypatch)
    else:
        weights.write_bytes(bytes(weights.stat().st_size))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["publish", str(tmp_path / "merged"), "me/soup", "--yes"]) == 2
    assert {"foreign": "another user", "changed": "was changed"}[what] in capsys.readouterr().err


# ── caches of the user ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["folder", "table", "open folder", "link"])
def test_a_table_of_hashes_that_another_user_could_have_made_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It could say of any weights that they have the hash of others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("EMBERGE_HASH_CACHE", raising=False)
    weights, table = tmp_path / "w.safetensors", tmp_path / "emberge" / "hashes.json"
    weights.write_bytes(bytes(LARGE))
    known = UserHashes()
    known.learn(weights.stat(), "0" * 32)
    known.save()
    assert UserHashes().find(weights.stat()) == "0" * 32
    if what == "link":
        table.rename(tmp_path / "elsewhere.json")
        table.symlink_to(tmp_path / "elsewhere.json")
    elif what == "open folder":
        table.parent.chmod(0o777)
    else:
        give_away(table if what == "table" else table.parent, monkeypatch)
    again = UserHashes()
    assert again.find(weights.stat()) is None
    again.learn(weights.stat(), "1" * 32)
    again.save()


@pytest.mark.parametrize("what", ["foreign", "open"])
def test_a_record_of_tested_kernels_is_not_believed_where_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    require_kernels()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tested_kernels.kernels.__wrapped__() is not None
    place = tmp_path / "emberge" / "kernels"
    assert len(list(place.iterdir())) == 1
    if what == "open":
        place.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(place, STRANGER, STRANGER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    compared: list[object] = []
    monkeypatch.setattr(
        compare_kernels, "first_difference", lambda seen: compared.append(seen) or ""
    )
    assert tested_kernels.kernels.__wrapped__() is not None
    assert compared


def test_a_cache_that_another_user_filled_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_once(tmp_path / "vectors", lambda side: (side / "a").touch())
    give_away(tmp_path / "vectors", monkeypatch)
    with pytest.raises(NotOursError):
        fill_once(tmp_path / "vectors", lambda _: None)
