"""What a machine offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError, devices
from emberge.devices import (
    choose_training_dtype,
    count_usable_cores,
    find_machine,
    limit_torch_threads,
    measure_memory,
    parse_size,
    read_available_memory,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("2GiB", 2 << 30), (" 1000 ", 1000), ("2TiB", 2 << 40), (12, 12)],
)
def test_a_size_is_read_as_people_write_it(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "12XB", "GB", "5 GBit"])
def test_a_text_that_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RecipeError, match="512MB"):
        parse_size(text)


def test_a_machine_has_the_devices_that_exist_or_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_machine(devices="cpu", memory="2GiB").memory == 2 << 30
    machine = find_machine()
    assert machine.workers >= 1
    assert machine.devices
    assert find_machine(workers=3, devices="cpu").workers == 3
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(RecipeError, match="--devices cuda: cuda is not here; this machine has cpu"):
        find_machine("cuda")
    with pytest.raises(RecipeError, match="cuda:99 is not here; this machine has cpu"):
        find_machine(devices="cuda:99")
    with pytest.raises(RecipeError, match="machine has cpu; a GPU is written cuda"):
        find_machine("gpu")
    with pytest.raises(RecipeError, match="at least one worker"):
        find_machine(workers=0)


def test_a_containers_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "Path", lambda path: tmp_path / path[1:])
    cores, memory, group = count_usable_cores(), measure_memory(), tmp_path / "sys/fs/cgroup"
    assert read_available_memory() == 2 << 30, "no file tells"
    for file, text in (
        (tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 4 kB\n"),
        *((group / name, "max") for name in ("cpu.max", "memory.max", "memory.current")),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = count_usable_cores(), measure_memory(), read_available_memory()
    assert found == (cores, memory, 4096)
    for name, text in {"cpu.max": "5 10", "memory.max": "3000", "memory.current": "9"}.items():
        (group / name).write_text(text)
    found = count_usable_cores(), measure_memory(), read_available_memory()
    assert found == (1, 3000, 2991)


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fpu avx2 avx512_bf16 avx512f", "bfloat16"), ("fpu avx2 avx512f avx512_bf16x", "float32")],
)
def test_a_cpu_computes_in_bfloat16_on_request_if_it_multiplies_it(
    flags: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_read_processor_flags", flags.split)
    assert choose_training_dtype("cpu", allows_bfloat16=True) == dtype
    assert choose_training_dtype("cpu") == "float32"


def test_the_number_of_torch_threads_is_restored() -> None:
    import torch

    before = torch.get_num_threads()
    with limit_torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
