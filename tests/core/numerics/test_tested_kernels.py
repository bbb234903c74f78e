"""Kernels are used where they work, agree with torch and pay; elsewhere torch is, with a clear line."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest
from emberge import numerics
from emberge.numerics import compiling, tested_kernels

MANY = 1 << 30


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiling.SWITCH, raising=False)


def test_small_merges_and_a_wish_go_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiling.worth_compiling(MANY)
    assert not compiling.worth_compiling(1000)
    monkeypatch.setenv(compiling.SWITCH, "never")
    assert not compiling.worth_compiling(MANY)
    assert compiling.SWITCH in compiling.kernels_line(MANY)
    monkeypatch.setenv(compiling.SWITCH, "always")
    assert compiling.worth_compiling(1000)


def test_without_numba_the_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert tested_kernels.kernels.__wrapped__() is None
    assert "emberge[kernels]" in compiling.kernels_line(MANY)


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiling.is_cache_usable.cache_clear()
    try:
        assert str(tmp_path / "file") in compiling.kernels_line(MANY)
        assert "cannot be written" in compiling.kernels_line(MANY)
    finally:
        compiling.is_cache_usable.cache_clear()


@pytest.fixture
def untested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mark of kernels that were never compared, and are compiled here."""
    pytest.importorskip("numba")
    monkeypatch.setattr(tested_kernels, "_mark_path", lambda: tmp_path / "tested")
    monkeypatch.setattr(tested_kernels, "_compile_in_process", lambda: None)
    return tmp_path / "tested"


def test_kernels_are_compared_once(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tested_kernels.kernels.__wrapped__() is not None
    assert untested.exists()
    monkeypatch.setattr(tested_kernels, "first_difference", lambda _: pytest.fail("compared again"))
    assert tested_kernels.kernels.__wrapped__() is not None


def test_kernels_that_differ_are_left_alone(
    untested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberge.numerics import row_kernels

    good = vars(row_kernels)

    def wrong(values: object, into: object) -> None:
        good["encode"](values, into)
        into[7] += 1  # type: ignore[index]

    broken = types.SimpleNamespace(**{**good, "encode": wrong})
    monkeypatch.setattr("emberge.numerics.row_kernels", broken)
    with pytest.warns(RuntimeWarning, match="'encode'"):
        assert tested_kernels.kernels.__wrapped__() is None
    assert not untested.exists()


def test_a_compiler_that_fails_is_warned_about(
    untested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> str:
        raise OSError("no LLVM here")

    monkeypatch.setattr(tested_kernels, "first_difference", fails)
    with pytest.warns(RuntimeWarning, match="no LLVM here"):
        assert tested_kernels.kernels.__wrapped__() is None


def test_a_numba_that_cannot_be_imported_is_warned_about(
    untested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(numerics, "row_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "emberge.numerics.row_kernels", None)
    with pytest.warns(RuntimeWarning, match="numba does not work here"):
        assert tested_kernels.kernels.__wrapped__() is None


def test_without_a_folder_kernels_are_for_one_run(
    untested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested_kernels, "is_cache_usable", lambda: False)
    monkeypatch.setattr(tested_kernels, "first_difference", lambda _: "")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert tested_kernels.kernels.__wrapped__() is not None
    assert not untested.exists()


def test_memory_has_room_for_what_kernels_read_at_once() -> None:
    pytest.importorskip("numba")
    from emberge.numerics import row_kernels, stored_rows

    assert row_kernels.WINDOW == stored_rows.WINDOW
    assert row_kernels.WINDOW % row_kernels.CHUNK == 0
