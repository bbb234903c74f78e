"""The runner: the machine decides the speed and never the bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    Block,
    CheckpointError,
    Measures,
    MergeStrategy,
    MergeTransform,
    Pass,
    PerModel,
    PerTensor,
    Stats,
)
from emberge.contracts import Scope
from emberge.merging import CopyJob, TensorJob
from emberge.merging.streaming.scheduler import SchedulerLimits, run_jobs
from emberge.merging.streaming.stream import write_tensors
from emberge.model_folder import Checkpoint
from emberge.tensor_files import FileSource, TensorReader, TensorSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.merge_in_memory import merge_state_dicts
from tests.support.tolerance import gamma


@dataclass(frozen=True, kw_only=True)
class Centre(MergeStrategy):
    """Subtract the mean over a scope from the mean of the models."""

    over: Scope = "tensor"
    shift: PerTensor = PerTensor(0.0)

    @property
    def passes(self) -> Sequence[Pass]:
        return (Pass(scope=self.over),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        return {"sum": block.tensors.mean(0).double().sum(), "count": block.tensors[0].numel()}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        centre = float(stats[0]["sum"] / stats[0]["count"])
        return block.tensors.mean(0) - centre + block.options.shift


@dataclass(frozen=True, kw_only=True)
class Halve(MergeTransform):
    """Multiply a model by its own factor."""

    factor: PerModel = PerModel(0.5)

    def apply(self, block: Block, stats: Stats) -> Block:
        shape = (-1, *[1] * (block.tensors.dim() - 1))
        factors = torch.from_numpy(block.options.factor).to(block.tensors.dtype)
        return block.with_tensors(block.tensors * factors.view(shape))


SHAPES = {
    "embed_tokens.weight": (11, 6),
    "layers.0.w": (7, 5),
    "layers.0.b": (5,),
    "layers.1.w": (7, 5),
    "layers.1.b": (),
    "norm.weight": (0, 3),
}


def models(count: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [
        {n: torch.randn(s, generator=generator) for n, s in SHAPES.items()} for _ in range(count)
    ]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@settings(max_examples=15, deadline=None)
@given(
    block=st.integers(1, 200), workers=st.integers(1, 4), scope=st.sampled_from(["tensor", "model"])
)
def test_block_sizes_and_workers_change_no_byte(block: int, workers: int, scope: Scope) -> None:
    links = [Halve(), Centre(over=scope)]
    expected = merge_state_dicts(models(), links, granule=10)
    found = merge_state_dicts(models(), links, granule=10, block=block, workers=workers)
    assert same(found, expected)


def test_measures_are_joined_over_the_scope_of_their_pass() -> None:
    states = models(1)
    for scope, groups in {"tensor": [[n] for n in SHAPES], "model": [list(SHAPES)]}.items():
        found = merge_state_dicts(states, [Centre(over=scope)])  # type: ignore[arg-type]
        for names in groups:
            total = sum(float(found[n].double().sum()) for n in names)
            # Of each element its mean and the common one are rounded, and their difference.
            size = sum(float(states[0][n].double().abs().sum()) for n in names)
            assert abs(total) <= 2 * gamma(3) * size


def test_options_are_resolved_by_depth_name_and_model() -> None:
    states = [{n: torch.zeros(s) for n, s in SHAPES.items()}] * 2
    shift = PerTensor([{"filter": "embed", "value": 9}, {"value": [1, 3]}])
    found = merge_state_dicts(states, [Centre(shift=shift)])
    assert float(found["embed_tokens.weight"][0, 0]) == 9
    assert float(found["layers.0.w"][0, 0]) == 1
    assert float(found["layers.1.w"][0, 0]) == 3
    ones = [{"w": torch.ones(2)}] * 2
    own = [{"halve": {"factor": PerModel(1.0)}}, {}]

    @dataclass(frozen=True, kw_only=True)
    class First(MergeStrategy):
        """Sum the models."""

        def merge(self, block: Block, stats: Stats) -> Tensor:
            return block.tensors.sum(0)

    assert merge_state_dicts(ones, [Halve(), First()], options=own)["w"].tolist() == [1.5, 1.5]


@dataclass(frozen=True, kw_only=True)
class Forget(MergeStrategy):
    """Forget to return what was merged."""

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return None  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Turn(MergeStrategy):
    """Give transposed rows."""

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.tensors[0].mT


@dataclass(frozen=True, kw_only=True)
class Stack(MergeStrategy):
    """Give the rows of all models."""

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.tensors


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Stack(), r"the shape \[2, 3\], not \[4, 2, 3\]$"),
        (Turn(), r"the shape \[2, 3\], not \[3, 2\]$"),
        (Forget(), "a tensor of floats, not None$"),
    ],
)
def test_a_strategy_that_returns_no_merged_rows_is_named(strategy: Any, message: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"^w: {type(strategy).__name__} must return {message}"
    ):
        merge_state_dicts([{"w": torch.ones(2, 3)}] * 4, [strategy])


@dataclass(frozen=True, kw_only=True)
class Picky(MergeStrategy):
    """Count the elements that were seen."""

    passes = (Pass(), Pass(is_needed=lambda _: False))

    def measure(self, block: Block, stats: Stats) -> Measures:
        return {"seen": block.tensors[0].numel()}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        assert block.tensors.shape == (1, 0, 2)
        return {"seen": stats[-1].get("seen", 0), "passes": len(stats)}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        assert [s["passes"] for s in stats] == [1, 2]
        return torch.full_like(block.tensors[0], stats[0]["seen"] * 100 + stats[1]["seen"])


def test_tensors_that_no_pass_needs_are_not_measured() -> None:
    found = merge_state_dicts([{"w": torch.zeros(5, 2)}], [Picky()], granule=2)
    assert found["w"].unique().tolist() == [1000]


@dataclass(frozen=True, kw_only=True)
class Named(MergeStrategy):
    """Add to the first model how many tensors have a name, which needs neither rows nor a base."""

    base_policy = "required"
    reads_base = False
    passes = (Pass(scope="model", reads="nothing"),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        assert block.tensors.numel() == 0
        return {"names": 1}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        assert block.base is None
        return block.tensors[0] + stats[0]["names"]


@dataclass(frozen=True, kw_only=True)
class Based(MergeTransform):
    """Take the base from each model."""

    base_policy = "required"

    def apply(self, block: Block, stats: Stats) -> Block:
        return block.with_tensors(block.deltas)


def test_a_base_that_no_stage_reads_is_not_read() -> None:
    """A base of NaN is no error where nobody reads it, and a model's is found when it is merged."""
    states = [{"v": torch.zeros(5, 2), "w": torch.ones(3)}]
    base = {n: torch.full_like(t, float("nan")) for n, t in states[0].items()}
    found = merge_state_dicts(states, [Named()], base, granule=2, block=2)
    assert found["v"].unique().tolist() == [2]
    assert found["w"].unique().tolist() == [3]
    states[0]["v"][4, 1] = float("nan")
    with pytest.raises(CheckpointError, match="v: 'one' has values that are NaN, infinite or"):
        merge_state_dicts(states, [Named()], base, names=["one"], granule=2)


def test_a_base_is_read_for_every_link_that_looks_at_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class After(Named):
        """Add the number of tensors to the sum of the changes."""

        def merge(self, block: Block, stats: Stats) -> Tensor:
            assert block.base is not None
            return block.tensors[0] + stats[0]["names"]

    states, base = [{"w": torch.full((2, 2), 5.0)}], {"w": torch.full((2, 2), 2.0)}
    assert merge_state_dicts(states, [Based(), After()], base)["w"].unique().tolist() == [4]
    nan = {"w": torch.full((2, 2), float("nan"))}
    with pytest.raises(CheckpointError, match="w: 'the base' has values that are NaN"):
        merge_state_dicts(states, [Based(), After()], nan)


def test_integer_tensors_are_copied_and_must_be_equal() -> None:
    one = {"n": torch.arange(5), "b": torch.tensor([True, False])}
    assert same(merge_state_dicts([one, dict(one)], [Centre()]), one)
    other = {**one, "n": torch.arange(5) + 1}
    with pytest.raises(CheckpointError, match="n: int64 values cannot be merged"):
        merge_state_dicts([one, other], [Centre()])


@dataclass(frozen=True)
class Rows(TensorJob):
    """Writes the number of each row: a job of a third party."""

    spec: TensorSpec
    threads: set[int] = field(default_factory=set)
    lengths: list[int] = field(default_factory=list)

    def produce(self, rows: range, all_measures: Sequence[Measures], device: str) -> Tensor:
        self.threads.add(threading.get_ident())
        self.lengths.append(len(rows))
        width = self.spec.shape[1]
        return torch.tensor(list(rows), dtype=torch.float32)[:, None].expand(-1, width).contiguous()


def test_a_job_needs_a_spec_and_produce_alone(tmp_path: Path) -> None:
    jobs = [Rows(TensorSpec(f"w{i}", (40, 3), "float32")) for i in range(3)]
    write_tensors(jobs, tmp_path / "out", limits=SchedulerLimits(workers=3, block=6))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(found[f"w{i}"][:, 1].tolist() == list(range(40)) for i in range(3))
    assert {length for job in jobs for length in job.lengths} == {2}
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["model.safetensors"]


def test_a_memory_limit_makes_blocks_smaller() -> None:
    job = Rows(TensorSpec("w", (1000, 4), "float32"))
    run_jobs([job], lambda *_: None, limits=SchedulerLimits(memory=3200, workers=2))
    assert max(job.lengths) * job.row_bytes * 2 <= 3200
    with pytest.raises(CheckpointError, match=r"w: needs .* at once and the limit is"):
        run_jobs([job], lambda *_: None, limits=SchedulerLimits(memory=10))
    wide = [Rows(TensorSpec(f"w{i}", (4, 1000), "float32")) for i in range(8)]
    run_jobs(wide, lambda *_: None, limits=SchedulerLimits(memory=12_000, workers=4))
    assert len({thread for job in wide for thread in job.threads}) == 1, "a row takes 8,000 bytes"


def test_a_copy_moves_bytes_as_they_are(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(9, 4).bfloat16(), "n": torch.arange(3), "x": torch.tensor(2.5)}
    tensors["w"][0, 0] = float("nan")
    (tmp_path / "in").mkdir()
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    specs = Checkpoint(tmp_path / "in").specs
    with TensorReader() as reader:
        jobs = [CopyJob(s, FileSource("m", s, reader)) for s in specs.values()]
        write_tensors(jobs, tmp_path / "out", limits=SchedulerLimits(block=5))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(
        torch.equal(found[n].view(-1).view(torch.uint8), t.view(-1).view(torch.uint8))
        for n, t in tensors.items()
    )


@dataclass(frozen=True)
class Failing(Rows):
    """Fails at a row."""

    at: int = 0

    def produce(self, rows: range, all_measures: Sequence[Measures], device: str) -> Tensor:
        if self.at in rows:
            raise CheckpointError(f"{self.spec.name}: no")
        return Rows.produce(self, rows, all_measures, device)


def damage_weights(out: Path) -> None:
    (out / "model.safetensors").write_bytes(b"short")


# What happens before the work goes on, and which of the tensors v, w and x are done again.
STOPS: dict[str, tuple[Callable[[Path], None], list[bool]]] = {
    "nothing": (lambda _: None, [False, False, True]),
    "a damaged part": (damage_weights, [True, True, True]),
}


@pytest.mark.parametrize("case", STOPS)
def test_finished_tensors_are_not_produced_again(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge.merging.streaming.journal.SYNC_INTERVAL", 0.0)
    happens, done_again = STOPS[case]
    v, w, x = (TensorSpec(name, (8, 3), "float32") for name in "vwx")
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="x: no"):
        write_tensors([Rows(v), Rows(w), Failing(x, at=4)], out)
    assert out.is_dir()
    happens(out)
    again = [Rows(v), Rows(w), Rows(x)]
    write_tensors(again, out)
    assert [bool(job.lengths) for job in again] == done_again
    found = load_file(out / "model.safetensors")
    assert all(tensor[:, 0].tolist() == list(range(8)) for tensor in found.values())
