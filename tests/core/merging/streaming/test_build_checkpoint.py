"""A step builds a whole model folder of any jobs: copies, derived tensors, changed and added files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from emberge import CheckpointError
from emberge.merging import CopyJob, TensorJob, build_checkpoint
from emberge.model_folder import Checkpoint
from emberge.tensor_files import DerivedTensor, FileSource, TensorReader, TensorSpec
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.whole import files, move_trunk

if TYPE_CHECKING:
    from emberge.tensor_files import RowReader
    from torch import Tensor

INNER = "encoder.layer.1.intermediate.dense.weight"


EXPERTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(DerivedTensor):
    """The mean of tensors of one shape."""

    of: tuple[TensorSpec, ...]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        one = into.new_empty(into.shape)
        into.zero_()
        for spec in self.of:
            reader.read(spec, rows.start * into.shape[1], one.view(-1))
            into += one
        into /= len(self.of)


def upcycled(checkpoint: Checkpoint, inner: str, reader: TensorReader) -> list[TensorJob]:
    """Copies of all tensors, of the one called `inner` for each expert, and the mean of those like it."""
    specs = checkpoint.specs
    jobs: list[TensorJob] = [
        CopyJob(spec, FileSource("dense", spec, reader))
        for name, spec in specs.items()
        if name != inner
    ]
    source = FileSource("dense", specs[inner], reader)
    jobs += [
        CopyJob(source.spec.with_name(f"experts.{expert}.weight"), source)
        for expert in range(EXPERTS)
    ]
    like = tuple(spec for spec in specs.values() if spec.shape == source.spec.shape)
    mean = Mean("mean.weight", source.spec.shape, "float32", of=like)
    return [*jobs, CopyJob(mean, FileSource("the mean", mean, reader))]


def build(dense: Path, out: Path, **settings: Any) -> Path:
    """Build the upcycled checkpoint of a dense one at `out`."""
    template = Checkpoint(dense)
    with TensorReader() as reader:
        jobs = upcycled(template, INNER, reader)
        build_checkpoint(jobs, out, template=template, key="upcycled", **settings)
    return out


@dataclass(frozen=True, slots=True)
class Filled(TensorJob):
    """Produces a value everywhere; `wrong` rows too many."""

    spec: TensorSpec
    value: float = 1.0
    wrong: int = 0

    def produce(self, rows: range, stats: Any, device: str) -> Tensor:
        return torch.full((len(rows) + self.wrong, *self.spec.shape[1:]), self.value)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in the layout of SentenceTransformers, with weights in modules after the transformer."""
    return tiny.projected(tmp_path_factory.mktemp("dense") / "model")


def test_a_copy_an_expert_and_a_mean_make_a_whole_folder(dense: Path, tmp_path: Path) -> None:
    out = build(dense, tmp_path / "out")
    own, found = load_file(dense / "model.safetensors"), load_file(out / "model.safetensors")
    assert found.keys() == own.keys() - {INNER} | {
        *(f"experts.{expert}.weight" for expert in range(EXPERTS)),
        "mean.weight",
    }
    for name, tensor in found.items():
        if name.startswith("experts."):
            assert torch.equal(tensor, own[INNER])
        elif name != "mean.weight":
            assert torch.equal(tensor, own[name])
    like = [own[name] for name in Checkpoint(dense).specs if name in own]
    like = [tensor for tensor in like if tensor.shape == own[INNER].shape]
    assert torch.equal(found["mean.weight"], sum(like[1:], like[0]) / len(like))
    given, made = files(dense), files(out)
    assert made.keys() == given.keys() - {"README.md", ".gitattributes"}
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert made[name] == given[name]
    for module in ("2_Dense", "4_Dense"):
        weights = [load_file(folder / module / "model.safetensors") for folder in (dense, out)]
        assert weights[0].keys() == weights[1].keys()
        assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no side folder is left"


@pytest.mark.parametrize("layout", ["", "0_Transformer"])
def test_files_are_changed_and_added_and_the_config_has_the_weights_dtype(
    layout: str, tmp_path: Path
) -> None:
    folder = tiny.checkpoint(tmp_path / "model")
    if layout:
        move_trunk(folder)
    template = Checkpoint(folder)
    specs = template.specs
    halves = [
        Mean(name, spec.shape, "bfloat16", of=(spec,))
        for name, spec in specs.items()
        if spec.mergeable
    ]
    with TensorReader() as reader:
        build_checkpoint(
            [CopyJob(half, FileSource("halved", half, reader)) for half in halves],
            tmp_path / "out",
            template=template,
            key="halves",
            files={
                template.locate_in_trunk("config.json"): {**template.config, "num_experts": 4},
                template.locate_in_trunk("modeling_of_ours.py"): "EXPERTS = 4\n",
                "further/notes.json": ["é"],
            },
        )
    out = tmp_path / "out" / layout
    config = json.loads((out / "config.json").read_text())
    assert config == {**template.config, "num_experts": 4, "dtype": "bfloat16"}
    assert (out / "modeling_of_ours.py").read_text() == "EXPERTS = 4\n"
    assert json.loads((tmp_path / "out" / "further" / "notes.json").read_text("utf-8")) == ["é"]
    assert (out / "tokenizer.json").read_bytes() == (
        folder / layout / "tokenizer.json"
    ).read_bytes()
    for name, tensor in load_file(out / "model.safetensors").items():
        own = load_file(folder / layout / "model.safetensors")[name]
        assert torch.equal(tensor, own.bfloat16())


def test_headers_have_the_provenance_and_the_versions(dense: Path, tmp_path: Path) -> None:
    provenance = {"note": "mine", "emberge": {"recipe": "0123"}}
    out = build(dense, tmp_path / "out", provenance=provenance)
    with safe_open(out / "2_Dense" / "model.safetensors", "pt") as file:
        header = file.metadata()
    assert header["note"] == "mine"
    ours = json.loads(header["emberge"])
    assert ours["recipe"] == "0123"
    assert ours["versions"]["torch"] == torch.__version__


def one(dense: Path, *jobs: TensorJob, out: Path, **settings: Any) -> None:
    build_checkpoint(jobs, out, template=Checkpoint(dense), key="k", **settings)


W = TensorSpec("w", (4, 3), "float32")


def test_two_jobs_of_one_name_are_refused_before_anything_is_written(
    dense: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="w: 2 jobs"):
        one(dense, Filled(W), Filled(W), out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (TensorSpec(INNER, (2, 3), "float32"), r"\[2, 3\].*'dense'"),
        (TensorSpec(INNER, (64, 32), "bfloat16"), "bfloat16.*'dense'.*float32"),
    ],
)
def test_a_copy_of_another_shape_or_dtype_is_refused(
    other: TensorSpec, said: str, dense: Path
) -> None:
    with TensorReader() as reader, pytest.raises(CheckpointError, match=f"{INNER}: .*{said}"):
        CopyJob(other, FileSource("dense", Checkpoint(dense).specs[INNER], reader))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_from_any_job(
    value: float, dense: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"w: .*NaN, infinite or above"):
        one(dense, Filled(W, value), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_derived_tensor_that_its_dtype_cannot_hold_is_refused(
    dense: Path, tmp_path: Path
) -> None:
    spec = Checkpoint(dense).specs[INNER]

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Huge(DerivedTensor):
        """Numbers beyond float16."""

        def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
            into.fill_(1e6)

    huge = Huge(INNER, spec.shape, "float16")
    with (
        TensorReader() as reader,
        pytest.raises(CheckpointError, match=f"{INNER}: 'noise'.*infinite"),
    ):
        one(dense, CopyJob(huge, FileSource("noise", huge, reader)), out=tmp_path / "out")


def test_a_job_that_produces_too_many_rows_cannot_reach_into_the_next_tensor(
    dense: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"w: rows 0 to 4 take 48 bytes.*Filled .*60"):
        one(dense, Filled(W, wrong=1), out=tmp_path / "out")


def test_an_occupied_folder_is_refused(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already"):
        build(dense, tmp_path / "out")
    assert files(tmp_path / "out") == {"mine.txt": b"mine"}
