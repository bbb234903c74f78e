"""Kernels are used where they work; elsewhere torch is, with a clear line."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge.merging import merge_state_dicts
from emberge.numerics import kernel_choice, row_kernels, stored_rows, tested_kernels
from emberge.numerics.native import build

from tests.support.compiled import require_kernels
from tests.support.registered import CHAINS


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernel_choice.SWITCH, raising=False)


def test_who_asks_for_torch_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_choice.kernels_allowed()
    monkeypatch.setenv(kernel_choice.SWITCH, "never")
    assert not kernel_choice.kernels_allowed()
    assert kernel_choice.SWITCH in kernel_choice.kernels_line()


def test_the_line_names_the_processor_that_kernels_are_for() -> None:
    require_kernels()
    assert row_kernels.load_library().processor in kernel_choice.kernels_line()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A library that is not loaded yet, in a folder of its own beside its source, or not there."""
    for path in (build.SOURCE, build.LIBRARY):
        if path.exists():
            shutil.copy(path, tmp_path)
    monkeypatch.setattr(build, "SOURCE", tmp_path / build.SOURCE.name)
    monkeypatch.setattr(build, "LIBRARY", tmp_path / build.LIBRARY.name)
    row_kernels.load_library.cache_clear()
    yield build.LIBRARY
    row_kernels.load_library.cache_clear()


def test_without_a_library_the_line_names_the_command_that_builds_it(elsewhere: Path) -> None:
    elsewhere.unlink(missing_ok=True)
    assert tested_kernels.kernels.__wrapped__() is None
    line = kernel_choice.kernels_line()
    assert "plain torch" in line
    assert str(Path("native", "build.py")) in line


def test_a_library_of_another_source_is_refused_with_the_command(elsewhere: Path) -> None:
    require_kernels()
    with build.SOURCE.open("a") as source:
        source.write("\n")
    row_kernels.load_library.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"another source: .*build\.py"):
        assert tested_kernels.kernels.__wrapped__() is None
    assert "plain torch" in kernel_choice.kernels_line()


def test_a_library_that_cannot_be_loaded_is_warned_about(elsewhere: Path) -> None:
    elsewhere.unlink(missing_ok=True)
    elsewhere.write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match=r"cannot be loaded"):
        assert tested_kernels.kernels.__wrapped__() is None


def test_an_older_processor_goes_without(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernels()
    row_kernels.load_library.cache_clear()
    known = row_kernels.ctypes.CDLL(str(elsewhere))
    old = types.SimpleNamespace(
        emberge_source=known.emberge_source, emberge_level=types.SimpleNamespace()
    )

    class Level:
        def __call__(self) -> bytes:
            return b""

    old.emberge_level = Level()
    monkeypatch.setattr(row_kernels.ctypes, "CDLL", lambda _: old)
    assert tested_kernels.kernels.__wrapped__() is None
    assert "AVX2" in kernel_choice.kernels_line()


def test_the_program_that_builds_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for compiler, reason in (("no-such-compiler", "no C compiler"), ("false", "failed")):
        monkeypatch.setenv("CC", compiler)
        done = subprocess.run(
            [sys.executable, build.__file__], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert reason in done.stderr


def test_every_level_of_the_processor_gives_the_same_bytes(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kernels()
    if row_kernels.load_library().level != "v4":
        pytest.skip("needs Linux on a processor with AVX-512")
    generator = torch.Generator().manual_seed(0)
    base, *models = ({"w": torch.randn(5, 411, generator=generator).bfloat16()} for _ in range(4))

    def merged() -> list[torch.Tensor]:
        strategies = ("linear", "multi_slerp", "ties", "dare_ties", "della", "breadcrumbs", "sce")
        return [
            merge_state_dicts(models, CHAINS[n][0], base, compiled=True)["w"] for n in strategies
        ]

    newer = merged()
    kernels = row_kernels.load_library().kernels
    library = row_kernels.ctypes.CDLL(str(build.LIBRARY))
    for name, kernel in [*kernels.items()]:
        older = library[f"emberge_{name}_v3"]
        older.argtypes, older.restype = kernel.argtypes, kernel.restype
        monkeypatch.setitem(kernels, name, older)
    assert all(map(torch.equal, merged(), newer))


def test_kernels_that_add_up_wrongly_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernels()
    good = vars(row_kernels)

    def wrong(*arguments: object) -> None:
        good["combine"](*arguments)
        arguments[-1][-1] += 1  # type: ignore[index]

    broken = types.SimpleNamespace(**{**good, "combine": wrong})
    monkeypatch.setattr(tested_kernels, "row_kernels", broken)
    with pytest.warns(RuntimeWarning, match="add up wrongly"):
        assert tested_kernels.kernels.__wrapped__() is None


def test_memory_has_room_for_what_kernels_read_at_once() -> None:
    source = build.SOURCE.read_text("utf-8")
    assert row_kernels.WINDOW == stored_rows.WINDOW
    assert row_kernels.WINDOW % row_kernels.CHUNK == 0
    assert f"CHUNK = {row_kernels.CHUNK}," in source
    assert f"WINDOW = 1 << {row_kernels.WINDOW.bit_length() - 1}," in source
    assert f"GRAM_LANES = 1 << {row_kernels.GRAM_LANES.bit_length() - 1}," in source
    assert f"LANES = 1 << {row_kernels.LANES.bit_length() - 1}," in source


@pytest.mark.parametrize("subtract", [False, True])
@pytest.mark.parametrize("less_first", [False, True])
@pytest.mark.parametrize("models", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("size", [5, 2048, (1 << 16) + 37])
def test_products_of_all_pairs_are_added_in_lanes(
    size: int, models: int, less_first: bool, subtract: bool
) -> None:
    require_kernels()
    generator = torch.Generator().manual_seed(size)
    stored = torch.randn(models + 1, size, generator=generator).bfloat16()
    step = -(-2 * size // stored_rows.ALIGNED) * stored_rows.ALIGNED
    memory: np.ndarray = np.zeros(step * len(stored), np.uint8)
    for m, row in enumerate(stored):
        memory[m * step : m * step + 2 * size] = row.view(torch.uint8).numpy()
    places = [stored_rows.Place("bfloat16", m * step, m) for m in range(models + 1)]
    rows = stored_rows.StoredRows.of(
        memory, places[:-1], places[-1], (size,), row_kernels, is_checked=True
    )
    changes = row_kernels.KernelProgram.of(
        np.empty(0, np.int64), np.empty((0, models), np.float32), np.empty((0, models, 3), int), 0
    )
    out = np.zeros((models * (models + 1) // 2, row_kernels.GRAM_LANES))
    row_kernels.gram(rows.kernel_rows(None, subtract=subtract), changes, size, less_first, out)

    values = (stored[:-1].float() - (stored[-1].float() if subtract else 0.0)).numpy()
    if less_first:
        values[1:] -= values[0]
    pairs = [(i, j) for i in range(models) for j in range(i + 1)]
    for (i, j), lanes in zip(pairs, out, strict=True):
        products = values[i].astype(np.float64) * values[j]
        padded = np.pad(products, (0, -size % row_kernels.GRAM_LANES))
        expected = np.add.reduce(padded.reshape(-1, row_kernels.GRAM_LANES), axis=0)
        assert np.array_equal(lanes, expected)


def test_arrays_of_another_kind_are_refused() -> None:
    require_kernels()
    with pytest.raises(TypeError, match="float64"):
        row_kernels.encode(np.zeros(4), np.zeros(4, np.uint16))
    with pytest.raises(TypeError, match=r"4 uint16"):
        row_kernels.encode(np.zeros(4, np.float32), np.zeros(3, np.uint16))
    with pytest.raises(TypeError):
        row_kernels.encode(np.zeros(8, np.float32)[::2], np.zeros(4, np.uint16))
