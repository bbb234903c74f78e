"""Imports and checks pause the garbage collector, and leave it as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from emberge.cli.main import main
from emberge.interpreter import pause_collections
from emberge.recipes import CheckReport


def test_collections_pause_and_go_on_after_an_error() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), pause_collections():
        1 / int(gc.isenabled())
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_collections_that_were_off_stay_off() -> None:
    gc.disable()
    try:
        with pause_collections(freeze=True):
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_check_collects_no_garbage_of_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []

    def checked(*_: object, **__: object) -> CheckReport:
        enabled.append(gc.isenabled())
        return CheckReport()

    monkeypatch.setattr("emberge.recipes.check_recipe", checked)
    (tmp_path / "r.yaml").write_text("steps: {a: {merge: {models: [./a, ./b], strategy: linear}}}")
    assert main(["check", str(tmp_path / "r.yaml")]) == 0
    assert enabled == [False]
    assert gc.isenabled()
