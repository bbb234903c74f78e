"""Kernels are used where they work; elsewhere torch is, with a clear line."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge import Block
from emberge.numerics import InnerProducts, row_kernels, stored_rows
from emberge.numerics.native import build
from torch import Tensor

from tests.support.compiled import require_kernels, store
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.registered import CHAINS


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(row_kernels.KERNELS_VARIABLE, raising=False)


def test_the_switch_turns_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_kernels.allows_kernels()
    monkeypatch.setenv(row_kernels.KERNELS_VARIABLE, "never")
    assert not row_kernels.allows_kernels()
    assert row_kernels.KERNELS_VARIABLE in row_kernels.describe_kernels()


def test_the_line_names_the_processor_that_kernels_are_for() -> None:
    require_kernels()
    assert row_kernels.load_library().processor in row_kernels.describe_kernels()


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
    assert stored_rows.load_kernels.__wrapped__() is None
    line = row_kernels.describe_kernels()
    assert "plain torch" in line
    assert str(Path("native", "build.py")) in line


def test_a_library_of_another_source_is_refused_with_the_command(elsewhere: Path) -> None:
    require_kernels()
    with build.SOURCE.open("a") as source:
        source.write("\n")
    row_kernels.load_library.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"another source: .*build\.py"):
        assert stored_rows.load_kernels.__wrapped__() is None
    assert "plain torch" in row_kernels.describe_kernels()


def test_a_library_that_cannot_be_loaded_is_warned_about(elsewhere: Path) -> None:
    elsewhere.unlink(missing_ok=True)
    elsewhere.write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match=r"cannot be loaded"):
        assert stored_rows.load_kernels.__wrapped__() is None


def test_an_older_processor_has_no_kernels(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kernels()
    row_kernels.load_library.cache_clear()
    known = ctypes.CDLL(str(elsewhere))

    def name_no_level() -> bytes:
        return b""

    old = types.SimpleNamespace(emberge_source=known.emberge_source, emberge_level=name_no_level)
    monkeypatch.setattr(row_kernels.ctypes, "CDLL", lambda _: old)
    assert stored_rows.load_kernels.__wrapped__() is None
    assert "AVX2" in row_kernels.describe_kernels()


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
    functions = row_kernels.load_library().functions
    library = ctypes.CDLL(str(build.LIBRARY))
    for name, kernel in [*functions.items()]:
        older = library[f"emberge_{name}_v3"]
        older.argtypes, older.restype = kernel.argtypes, kernel.restype
        monkeypatch.setitem(functions, name, older)
    assert all(map(torch.equal, merged(), newer))


def test_kernels_that_add_up_wrongly_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernels()
    known = row_kernels.load_library()

    def wrong(*arguments: int) -> int:
        code: int = known.functions["combine"](*arguments)
        ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_float))[0] += 1
        return code

    broken = known._replace(functions={**known.functions, "combine": wrong})
    monkeypatch.setattr(stored_rows, "load_library", lambda: broken)
    with pytest.warns(RuntimeWarning, match="add up wrongly"):
        assert stored_rows.load_kernels.__wrapped__() is None


def test_memory_has_room_for_what_kernels_read_at_once() -> None:
    source = build.SOURCE.read_text("utf-8")
    assert row_kernels.WINDOW_NUMBERS % row_kernels.CHUNK_NUMBERS == 0
    assert f"CHUNK = {row_kernels.CHUNK_NUMBERS}," in source
    for name in ("WINDOW_NUMBERS", "GRAM_LANES", "LANES"):
        bits = getattr(row_kernels, name).bit_length() - 1
        assert f"{name.removesuffix('_NUMBERS')} = 1 << {bits}," in source
    assert f"enum {{ {', '.join(row_kernels.CHANGE_KERNELS).upper()} }};" in source


# More than what is multiplied at once, and no multiple of the lanes.
SIZE = (1 << 14) + 333


def draw_models(count: int, size: int, spread: float) -> Tensor:
    """Models at a distance from each other."""
    generator = torch.Generator().manual_seed(size)
    base = torch.randn(size, generator=generator)
    return torch.stack(
        [base + spread * torch.randn(size, generator=generator) for _ in range(count)]
    )


@pytest.mark.parametrize(("spread", "error"), [(1e-3, 1e-9), (10.0, 1e-13)])
def test_products_of_float32_numbers_are_added_in_float64(spread: float, error: float) -> None:
    """Products of models near each other come from their differences, which are rounded to float32."""
    models = draw_models(3, SIZE, spread)
    found = Block.of(models).inner_products(deltas=False, differences=True)
    distances = torch.cat([models[:1], models[1:] - models[0]])
    for name, vectors, limit in (("products", models, error), ("differences", distances, 1e-12)):
        exact = vectors.double() @ vectors.double().T
        lengths = exact.diagonal().sqrt()
        assert (
            (torch.from_numpy(found[name]) - exact) / lengths / lengths[:, None]
        ).abs().max() < limit
        assert np.array_equal(found[name], found[name].T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("models", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("size", [5, 2048, (1 << 16) + 37])
def test_kernels_add_products_in_the_order_of_torch(
    size: int, models: int, dtype: torch.dtype
) -> None:
    require_kernels()
    *vectors, base = draw_models(models + 1, size, 0.1).to(dtype)
    decoded = Block.of(torch.stack(vectors).float(), base.float())
    compiled = decoded.replace(rows=store([*vectors, base]))
    for deltas in (False, True):
        for differences in (False, True):
            products = InnerProducts(deltas, differences)
            found, wanted = (one.evaluate(products) for one in (compiled, decoded))
            assert found.keys() == wanted.keys()
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_arrays_of_another_kind_are_refused() -> None:
    require_kernels()
    call = row_kernels.load_library().call
    for stored in (np.zeros(4), np.zeros(8, np.uint8)[::2]):
        with pytest.raises(ctypes.ArgumentError):
            call("are_usable", 0, stored, 2)
