"""What steps import and takes long is imported beside the hashing of inputs, and only then."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from emberge.recipes.run.run_step import ModuleLoader, import_modules


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that notes the thread which imports it, and whether collections were on."""
    name = f"slow_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import gc, threading\nTHREAD, COLLECTING = threading.current_thread().name, gc.isenabled()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)
    gc.unfreeze()


def test_a_loader_imports_in_a_thread_once_it_was_started(slow: str) -> None:
    loader = ModuleLoader([slow])
    loader.wait()
    assert slow not in sys.modules
    starters = [threading.Thread(target=loader.start) for _ in range(8)]
    for one in starters:
        one.start()
    for one in starters:
        one.join()
    loader.wait()
    assert sys.modules[slow].THREAD == "import"


def test_nothing_is_collected_while_modules_are_imported_and_then_again(slow: str) -> None:
    import_modules([slow])
    assert not sys.modules[slow].COLLECTING
    assert gc.isenabled()


def test_a_process_that_collects_nothing_stays_so(slow: str) -> None:
    gc.disable()
    try:
        import_modules([slow])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_cannot_be_imported_is_left_to_whoever_needs_it(slow: str, tmp_path: Path) -> None:
    (tmp_path / "broken_by_design.py").write_text("raise ValueError('broken')")
    import_modules(["broken_by_design", "no_such_module_anywhere", slow])
    assert slow in sys.modules


def test_what_is_there_already_is_not_imported_again() -> None:
    frozen = gc.get_freeze_count()
    import_modules(["json"])
    assert gc.get_freeze_count() == frozen
