"""Translations: none is published or read that is no map, and none is lost to another process or an error."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import CheckpointError, DataError, EmbergeError, RecipeError
from emberge.cli.main import main
from emberge.encoding import read_space_map
from emberge_index import (
    FILE,
    Kind,
    Moments,
    SpaceOf,
    WorkFolder,
    fit_folds,
    fit_map,
    read_translation,
    translate_file,
    working_on,
)
from emberge_index.translation.two_models import _build_translation
from emberge_index.vectors import rewrite, translate_verb
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.support.translations import recipe, vectors, write_translation

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def by(tmp_path: Path) -> Path:
    """A translation from vectors of 24 numbers to 16."""
    write_translation(tmp_path / "by", 24, 16)
    return tmp_path / "by"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    np.save(tmp_path / "old.npy", vectors(2000, 24))
    return tmp_path / "old.npy"


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


# ── fits ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ridge", [1e300, 1e10, -1e-9])
def test_a_ridge_without_a_meaning_is_refused_by_check(
    ridge: float, berts: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    path = recipe(tmp_path, "translate", old=str(berts[0]), new=str(berts[1]), ridge=ridge)
    assert main(["check", str(path)]) == 2
    assert "ridge" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["affine", "orthogonal", "shift", "low_rank"])
@pytest.mark.parametrize("broken", ["ridge", "source", "target"])
def test_no_map_is_fitted_that_is_not_finite(kind: Kind, broken: str) -> None:
    x, y = vectors(60, 8), vectors(60, 8, seed=1)
    ridge = 0.1
    if broken == "source":
        x[3, 2] = np.nan
    elif broken == "target":
        y[3, 2] = np.inf
    elif kind in ("orthogonal", "shift"):
        return  # they have no ridge
    else:
        ridge = float("inf")
    with np.errstate(invalid="ignore"), pytest.raises(DataError, match="no single map"):
        fit_map(Moments.of(x, y), kind, ridge=ridge, rank=2)


def test_texts_that_do_not_decide_a_map_are_named() -> None:
    x = vectors(60, 8)
    x[:, 7] = 0
    with pytest.raises(DataError, match="ridge above 0"):
        fit_map(Moments.of(x, vectors(60, 8, seed=1)), "affine", ridge=0.0)


def test_texts_that_are_all_in_one_fold_are_too_few() -> None:
    x = vectors(9, 4)
    with pytest.raises(DataError, match="more texts"):
        fit_folds(x, x, np.zeros(9, np.int64), "shift")


def test_an_old_model_that_gives_all_texts_one_vector_is_named() -> None:
    source = np.repeat(vectors(1, 8), 60, axis=0)
    space = SpaceOf("./flat", "a" * 64, "", 8, True)
    folds = fit_folds(source, vectors(60, 8), np.arange(60) % 5, "shift")
    with pytest.raises(DataError, match=r"\./flat gives all texts the same vector"):
        _build_translation(write_header(space), folds, source)


def write_header(space: SpaceOf) -> Any:
    from emberge_index import TranslationHeader

    return TranslationHeader("shift", "documents", space, space, 60)


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def changed(by: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the header and the tensors of a translation."""
    with safe_open(str(by / FILE), framework="numpy") as file:
        header = json.loads(file.metadata()["translation"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    save_file(tensors, by / FILE, metadata={"translation": json.dumps(header)})


# What a file may have, and whether the map alone is unsound: an evaluation reads no more than that.
UNSOUND: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], bool]] = {
    "a NaN in the matrix": (lambda _, t: t["matrix"].__setitem__((3, 2), np.nan), True),
    "an infinite offset": (lambda _, t: t["offset"].__setitem__(5, np.inf), True),
    "another matrix": (lambda _, t: t.update(matrix=np.ones((24, 15))), True),
    "a matrix of whole numbers": (lambda _, t: t.update(matrix=np.ones((24, 16), int)), True),
    "no matrix": (lambda _, t: t.pop("matrix"), True),
    "another size of the source": (lambda h, _: h["source"].update(dimension=23), True),
    "a size that is a text": (lambda h, _: h["target"].update(dimension="16"), True),
    "a target that is a text": (lambda h, _: h.update(target="new"), True),
    "a NaN among the axes": (lambda _, t: t["source.axes"].__setitem__((0, 0), np.nan), False),
    "another mean": (lambda _, t: t.update({"source.mean": np.zeros(3)}), False),
    "no usual distance": (lambda _, t: t["source.usual"].__setitem__(0, 0.0), False),
    "a key of its own": (lambda h, _: h.update(own=1), False),
    "no side": (lambda h, _: h.update(side="both"), False),
    "a rank below one": (lambda h, _: h.update(rank=-3), False),
    "a rank that is a text": (lambda h, _: h.update(rank="3"), False),
    "a name that is a number": (lambda h, _: h["source"].update(name=3), False),
    "texts that are a list": (lambda h, _: h.update(texts=[]), False),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_a_file_that_is_no_translation_is_refused_by_its_readers(name: str, by: Path) -> None:
    change, map_too = UNSOUND[name]
    changed(by, change)
    with pytest.raises(DataError, match=rf"{FILE}.*fit it again"):
        read_translation(by)
    if map_too:
        with pytest.raises(DataError, match=rf"{FILE}.*fit it again"):
            read_space_map(by)


def test_a_translation_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    for read in (read_translation, read_space_map):
        with pytest.raises(DataError, match=FILE):
            read(tmp_path)


def test_a_models_name_cannot_steer_the_terminal(by: Path, old: Path, capsys: Capture) -> None:
    changed(by, lambda header, _: header["source"].update(name="\x1b[2Jold", dimension=24))
    np.save(old, vectors(50, 20))
    assert main(["translate", str(old), "--by", str(by), "--out", str(old.parent / "n.npy")]) == 2
    error = capsys.readouterr().err
    assert "old" in error
    assert "\x1b" not in error


def test_a_rank_that_the_matrix_has_not_cuts_nothing_off(tmp_path: Path) -> None:
    """The matrix is what was fitted; the rank is only a shorter way to multiply by it."""
    made = write_translation(tmp_path / "by", 24, rank=2, kind="low_rank")
    given = vectors(300, 24)
    np.save(tmp_path / "old.npy", given)
    translate_file(tmp_path / "old.npy", tmp_path / "by", tmp_path / "new.npy")
    wanted = made.fitted(given)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "new.npy"), wanted, rtol=0, atol=1e-5)


# ── two at once, failed and killed runs ─────────────────────────────────────────────────────────


def test_the_second_of_two_that_write_one_file_is_refused(by: Path, old: Path) -> None:
    out = old.with_name("new.npy")
    refused: list[BaseException] = []

    def second(*_: Any) -> None:
        if not refused:
            with pytest.raises(CheckpointError, match=r"new\.npy.*another process") as caught:
                translate_file(old, by, out)
            refused.append(caught.value)

    translate_file(old, by, out, progress=second)
    assert refused
    assert len(np.load(out)) == 2000
    assert names(old.parent) == {"by", "old.npy", "new.npy", "new.npy.emberge.json"}


def test_a_file_that_came_into_being_meanwhile_is_kept(
    by: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = old.with_name("new.npy")
    with pytest.raises(RecipeError, match=r"new\.npy: exists"):
        translate_file(old, by, out, progress=lambda *_: out.write_text("mine"))
    assert out.read_text() == "mine"
    out.unlink()
    checked = translate_verb._require_space

    def late(*given: Any) -> None:  # another process is done between the checks and the lock
        checked(*given)
        out.write_text("mine")

    monkeypatch.setattr(translate_verb, "_require_space", late)
    worked: list[int] = []
    with pytest.raises(RecipeError, match=r"new\.npy: exists"):
        translate_file(old, by, out, progress=lambda done, _: worked.append(done))
    assert not worked
    assert out.read_text() == "mine"
    assert names(old.parent) == {"by", "old.npy", "new.npy", "new.npy.emberge.json"}


def test_an_order_that_came_into_being_meanwhile_is_kept(
    by: Path, old: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from emberge_index import refresh_verb

    out, order = old.with_name("first.npy"), refresh_verb.order_of

    def late(*given: Any, **more: Any) -> Any:
        found = order(*given, **more)
        out.write_text("mine")
        return found

    monkeypatch.setattr(refresh_verb, "order_of", late)
    assert main(["refresh", str(old), "--by", str(by), "--out", str(out)]) == 2
    assert "first.npy: exists" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_a_run_that_cannot_be_continued_leaves_nothing(by: Path, old: Path) -> None:
    given = vectors(2000, 24)
    given[1999] = np.nan
    np.save(old, given)
    with pytest.raises(DataError, match=r"old\.npy.*1,?999"):
        translate_file(old, by, old.with_name("new.npy"))
    assert names(old.parent) == {"by", "old.npy"}


def test_a_full_disk_is_named_and_the_next_run_goes_on(
    by: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = old.with_name("new.npy"), old.with_name("whole.npy")
    translate_file(old, by, whole)
    note, noted = WorkFolder.note, []

    def full(work: WorkFolder, handle: int, done: Any) -> None:
        if len(noted) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        noted.append(done)
        note(work, handle, done)

    monkeypatch.setattr(rewrite, "NOTED", 0.0)
    monkeypatch.setattr("emberge_index.vectors.pieces.BLOCK", 24 * 4 * 64)
    monkeypatch.setattr(WorkFolder, "note", full)
    with pytest.raises(EmbergeError, match=r"new\.npy.*make room"):
        translate_file(old, by, out)
    monkeypatch.setattr(WorkFolder, "note", note)
    seen: list[int] = []
    translate_file(old, by, out, progress=lambda done, _: seen.append(done))
    assert seen[0] > 64, "it went on from where it was"
    np.testing.assert_allclose(np.load(out), np.load(whole), rtol=0, atol=1e-6)
    marks = {"new.npy.emberge.json", "whole.npy.emberge.json"}
    assert names(old.parent) == {"by", "old.npy", "new.npy", "whole.npy", *marks}


def test_zeros_are_counted_over_a_kill(
    by: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = vectors(2000, 24)
    given[[5, 100, 1990]] = 0
    np.save(old, given)
    monkeypatch.setattr(rewrite, "NOTED", 0.0)
    monkeypatch.setattr("emberge_index.vectors.pieces.BLOCK", 24 * 4 * 64)

    def stop(done: int, _: int) -> None:
        if done > 1000:
            raise KeyboardInterrupt

    out = old.with_name("new.npy")
    with pytest.raises(KeyboardInterrupt):
        translate_file(old, by, out, progress=stop)
    assert translate_file(old, by, out).empty == 3


def test_what_is_planted_beside_out_is_neither_followed_nor_taken(by: Path, old: Path) -> None:
    thesis = old.parent / "thesis"
    thesis.mkdir()
    (thesis / "vectors").write_text("all my work")
    out = old.with_name("new.npy")
    WorkFolder(out, "").folder.symlink_to(thesis)
    with pytest.raises(EmbergeError, match=r"new\.npy\.translating"):
        translate_file(old, by, out)
    assert (thesis / "vectors").read_text() == "all my work"
    WorkFolder(out, "").folder.unlink()
    WorkFolder(out, "").folder.mkdir()
    WorkFolder(out, "").file.symlink_to(thesis / "vectors")
    with pytest.raises(EmbergeError, match="vectors"):
        translate_file(old, by, out)
    assert (thesis / "vectors").read_text() == "all my work"
    assert not out.exists()


@pytest.mark.parametrize("change", ["matrix", "offset", "header", "column"])
def test_work_of_another_map_or_model_is_not_continued(
    change: str, by: Path, old: Path, tmp_path: Path
) -> None:
    from emberge_index import plan_vectors

    made = write_translation(by, 24, 16)
    plan = plan_vectors(old, dimension=16)
    before = translate_verb._describe_work(plan, made, None)
    if change == "matrix":
        made.fitted.matrix[3, 2] += 1
    elif change == "offset":
        made.fitted.offset[3] += 1
    elif change == "header":
        target = replace(made.header.target, name="newer")
        made = replace(made, header=replace(made.header, target=target))
    else:
        save_file({"a": vectors(9, 24), "b": vectors(9, 24)}, tmp_path / "two.safetensors")
        keys = {
            translate_verb._describe_work(
                plan_vectors(tmp_path / "two.safetensors", name, dimension=16), made, None
            )
            for name in "ab"
        }
        assert len(keys) == 2
        return
    assert translate_verb._describe_work(plan, made, None) != before


def test_bytes_are_on_the_disk_before_the_journal_claims_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: done.append("synced"))
    monkeypatch.setattr(rewrite, "write_text", lambda *_: done.append("noted"))
    work = WorkFolder(tmp_path / "new.npy", "key")
    work.folder.mkdir()
    with work.file.open("wb") as file:
        work.note(file.fileno(), rewrite.WrittenBytes(3, 0))
    assert done == ["synced", "noted"]


def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "new.npy", "")
    with pytest.raises(ZeroDivisionError), working_on(work):
        raise ZeroDivisionError
    with working_on(work):
        pass
    assert not names(tmp_path)
