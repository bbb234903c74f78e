"""Rows that kernels read from files: the bytes of rows in memory, and a refusal of what is not usable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge import Block, CheckpointError, MergeStrategy, Stage, Stats
from emberge.numerics import DecodedRows, RowsError, RowsPlace, StoredRows, load_kernels
from torch import Tensor

from tests.support.chains import chain
from tests.support.compiled import require_kernels
from tests.support.merge_in_memory import MemorySource, merge_state_dicts
from tests.support.registered import CHAINS, needs_whole

require_kernels()

State = Mapping[str, Tensor]
WINDOW_NUMBERS = 1 << 16  # numbers of a model that kernels read at once
RUN = 512  # numbers of a model that are sampled together
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = {
    "within": (2, 3000),
    "a window": (WINDOW_NUMBERS,),
    "and one more": (WINDOW_NUMBERS + 1,),
    "three": (3, WINDOW_NUMBERS - 11),
}
CHOSEN = {name: links for name, (links, _) in CHAINS.items() if not needs_whole(links)}


@dataclass(frozen=True, kw_only=True)
class Unread(MergeStrategy):
    """A strategy that looks at no row of a model."""

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return torch.zeros(block.rows.rows.shape)


@pytest.fixture
def in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Tensors in memory lie in a file for whoever asks; the function cuts that many bytes off its end."""
    path = tmp_path / "weights"
    places: dict[int, int] = {}
    tensors: list[Tensor] = []  # kept, as the places are by identity
    with path.open("w+b") as file:

        def locate(source: MemorySource, start: int, size: int) -> tuple[int, int]:
            tensor = source.tensor
            if id(tensor) not in places:
                file.write(b"odd")
                places[id(tensor)] = file.tell()
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
                file.flush()
                tensors.append(tensor)
            return file.fileno(), places[id(tensor)] + start

        def cut(count: int) -> None:
            def locate_in_cut(source: MemorySource, start: int, size: int) -> tuple[int, int]:
                found = locate(source, start, size)
                os.truncate(path, places[id(tensors[-1])] + tensors[-1].nbytes - count)
                return found

            monkeypatch.setattr(MemorySource, "locate", locate_in_cut)

        monkeypatch.setattr(MemorySource, "locate", locate)
        yield cut


def make_states(
    shape: Sequence[int], dtype: torch.dtype, models: int = 2
) -> tuple[State, list[State]]:
    """A base and models near it, with one tensor of a shape."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(tuple(shape), generator=generator)
    return {"w": base.to(dtype)}, [
        {"w": (base + 0.1 * torch.randn(tuple(shape), generator=generator)).to(dtype)}
        for _ in range(models)
    ]


def merge(
    links: Sequence[Stage], base: State, models: Sequence[State], block: int = 1 << 20
) -> Tensor:
    """The merged tensor, by kernels, in one block, or in blocks of so many elements."""
    based = any(link.base_policy == "required" for link in links)
    return merge_state_dicts(
        models, links, base if based else None, compiled=True, block=block, granule=block
    )["w"]


@pytest.mark.parametrize("name", CHOSEN)
def test_the_bytes_are_those_of_rows_in_memory(name: str, request: pytest.FixtureRequest) -> None:
    links = CHOSEN[name]
    count = 2 if 2 in links[0].arity else links[0].arity.start
    cases = [
        make_states(shape, dtype, count)
        for shape, dtype in zip(SHAPES.values(), [*DTYPES, DTYPES[0]], strict=True)
    ]
    wanted = [merge(links, *case) for case in cases]
    request.getfixturevalue("in_files")
    for case, tensor in zip(cases, wanted, strict=True):
        assert torch.equal(merge(links, *case).view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("name", ["linear", "ties", "dare_ties", "sce", "della", "multi_slerp"])
@pytest.mark.parametrize("place", [5, WINDOW_NUMBERS - 1, WINDOW_NUMBERS, 2 * WINDOW_NUMBERS])
@pytest.mark.usefixtures("in_files")
def test_a_nan_is_refused_wherever_it_is(name: str, place: int) -> None:
    for dtype, number in zip(DTYPES, [float("nan"), -float("inf"), 2.0**64], strict=True):
        base, models = make_states((2 * WINDOW_NUMBERS + 1,), dtype)
        models[1]["w"][place] = number
        with pytest.raises(CheckpointError, match=r"w: 'model 2' has values that are NaN"):
            merge(CHOSEN[name], base, models)


@pytest.mark.parametrize("place", [0, 1, 2, 3, WINDOW_NUMBERS - 1, WINDOW_NUMBERS])
@pytest.mark.usefixtures("in_files")
def test_the_largest_numbers_that_are_usable_are_taken(place: int) -> None:
    largest = {torch.float16: 65504.0, torch.bfloat16: 2.0**64 - 2.0**56, torch.float32: 2.0**63}
    for dtype, number in largest.items():
        base, models = make_states((WINDOW_NUMBERS + 1,), dtype, 1)
        models[0]["w"][place] = -number
        assert merge(CHOSEN["linear"], base, models)[place] == -number


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(3,), (3, 5), (40, RUN), (300, RUN)])
@pytest.mark.usefixtures("in_files")
def test_a_sample_leaves_no_number_unchecked(shape: tuple[int, ...], density: float) -> None:
    base, models = make_states(shape, torch.bfloat16)
    models[0]["w"].view(-1)[-1] = float("nan")
    with pytest.raises(CheckpointError, match=r"w: 'model 1' has values that are NaN"):
        merge(chain("ties", density=density), base, models)


@pytest.mark.usefixtures("in_files")
def test_rows_that_a_strategy_does_not_read_are_checked_too() -> None:
    base, models = make_states((2, WINDOW_NUMBERS), torch.bfloat16)
    assert merge([Unread()], base, models).shape == (2, WINDOW_NUMBERS)
    base, models = make_states((2, WINDOW_NUMBERS), torch.bfloat16)
    models[0]["w"][1, -1] = float("inf")
    with pytest.raises(CheckpointError, match=r"w: 'model 1' has values that are NaN"):
        merge([Unread()], base, models)


@pytest.mark.parametrize("name", ["linear", "ties", "multi_slerp"])
def test_a_file_that_ends_too_early_is_refused(name: str, in_files: Callable[[int], None]) -> None:
    in_files(1)
    base, models = make_states((WINDOW_NUMBERS + 3,), torch.bfloat16)
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        merge(CHOSEN[name], base, models)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sampled_runs_are_every_so_many_of_the_tensor(dtype: torch.dtype, tmp_path: Path) -> None:
    size = 2 * WINDOW_NUMBERS + 123
    values = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)
    path = tmp_path / "rows"
    path.write_bytes(b"abc" + values.view(torch.uint8).numpy().tobytes())
    name = str(dtype).removeprefix("torch.")
    with path.open("rb") as file:
        place = RowsPlace(name, 0, 0, file.fileno(), 3)
        base = RowsPlace(name, WINDOW_NUMBERS * values.itemsize, 1, file.fileno(), 3)
        memory = np.empty(2 * WINDOW_NUMBERS * values.itemsize, np.uint8)
        for stride, start in [
            (1, 0),
            (1, 7),
            (3, 0),
            (3, RUN),
            (5, 3 * RUN + 5),
            (1000, 0),
            (1000, 9),
        ]:
            rows = StoredRows.of(memory, [place], base, (size,), load_kernels(), is_checked=True)
            runs = rows.take_runs(stride, start)
            sampled, of_base = runs.decode(), runs.decode_base()
            is_chosen = (torch.arange(start, start + size) // RUN) % stride == 0
            assert torch.equal(sampled[0], values[is_chosen].float())
            assert of_base is not None
            assert torch.equal(of_base, values[is_chosen].float())
            decoded = DecodedRows(values.float()[None], values.float())
            assert torch.equal(decoded.take_runs(stride, start).models, sampled)


def test_a_refusal_has_the_number_of_the_model(tmp_path: Path) -> None:
    values = torch.zeros(2, WINDOW_NUMBERS + 1)
    values[1, -1] = float("inf")
    path = tmp_path / "rows"
    path.write_bytes(values.view(torch.uint8).numpy().tobytes())
    with path.open("rb") as file:
        places = [RowsPlace("float32", 0, n, file.fileno(), n * values[0].nbytes) for n in range(2)]
        memory = np.empty(4 * WINDOW_NUMBERS, np.uint8)
        rows = StoredRows.of(
            memory, places, None, (WINDOW_NUMBERS + 1,), load_kernels(), is_checked=True
        )
        assert not rows.pick([0]).decode().any()
        with pytest.raises(RowsError) as refused:
            rows.pick([1]).decode()
        assert refused.value.number == 1


def test_rows_are_checked_only_if_asked(tmp_path: Path) -> None:
    values = torch.full((WINDOW_NUMBERS + 1,), float("nan"))
    path = tmp_path / "rows"
    path.write_bytes(values.view(torch.uint8).numpy().tobytes())
    with path.open("rb") as file:
        place = RowsPlace("float32", 0, 0, file.fileno(), 0)
        memory = np.empty(4 * WINDOW_NUMBERS, np.uint8)
        rows = StoredRows.of(memory, [place], None, values.shape, load_kernels(), is_checked=False)
        assert rows.decode().isnan().all()
        rows.check_rest()
        checked = StoredRows.of(
            memory, [place], None, values.shape, load_kernels(), is_checked=True
        )
        with pytest.raises(RowsError) as refused:
            checked.decode()
        assert not refused.value.is_unreadable
        assert refused.value.number == 0
