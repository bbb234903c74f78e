"""What a machine offers."""

from __future__ import annotations

import pytest
from emberge import RecipeError, devices
from emberge.devices import choose_training_dtype, find_machine, limit_torch_threads, parse_size


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


def test_a_machine_has_the_devices_that_exist_or_are_named() -> None:
    assert find_machine(devices="cpu", memory="2GiB").memory == 2 << 30
    machine = find_machine()
    assert machine.workers >= 1
    assert machine.devices
    assert find_machine(workers=3, devices="cpu").workers == 3
    with pytest.raises(RecipeError, match="cuda:99 is not here; this machine has cpu"):
        find_machine(devices="cuda:99")
    with pytest.raises(RecipeError, match="at least one worker"):
        find_machine(workers=0)


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fpu avx2 avx512_bf16 avx512f", "bfloat16"), ("fpu avx2 avx512f avx512_bf16x", "float32")],
)
def test_a_cpu_computes_in_bfloat16_on_request_if_it_multiplies_it(
    flags: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_read_processor_field", {"flags": flags}.__getitem__)
    assert choose_training_dtype("cpu", on_processors=True) == dtype
    assert choose_training_dtype("cpu") == "float32"


def test_the_number_of_torch_threads_is_restored() -> None:
    import torch

    before = torch.get_num_threads()
    with limit_torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
