"""Fisher merging: the worked numbers, its laws with statistics, and files held to their models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, FileRef
from emberge.merging import MergeInput, MergeRequest, Statistics, plan_merge
from emberge.model_folder import Checkpoint, hash_model
from emberge_merge.methods.fisher import Fisher
from emberge_merge.methods.group import Group
from emberge_merge.methods.weighted_sums import Linear
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from tests.support.merge_in_memory import merge_state_dicts
from tests.support.merges import merge_models
from tests.support.tolerance import assert_combined

# The worked example of T-E30.
BASE = torch.tensor([[1.0, 2, 3], [4, 5, 6]], dtype=torch.float64)
D1 = torch.tensor([[0.4, -0.2, 0], [0.1, -0.6, 0.3]], dtype=torch.float64)
D2 = torch.tensor([[0.2, 0.3, -0.1], [-0.4, -0.25, 0.5]], dtype=torch.float64)
F1 = torch.tensor([[4.0, 1, 0], [1, 9, 1]], dtype=torch.float64)
F2 = torch.tensor([[1.0, 1, 0], [3, 1, 1]], dtype=torch.float64)
NAMES = ("a", "b")


def merged(
    models: list[Tensor],
    information: list[Tensor],
    weights: tuple[float, ...] = (1.0, 1.0),
    how: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tensor:
    stage = Fisher(statistics=(), **options)
    told = {"w": dict(zip(NAMES, information, strict=True))}
    states = [{"w": model} for model in models]
    settings = {"dtype": "float64", "names": NAMES, "statistics": told, **(how or {})}
    return merge_state_dicts(states, [stage], weights=weights, **settings)["w"]


def test_fisher_gives_the_worked_numbers() -> None:  # T-E30
    expected = torch.tensor([[0.36, 0.05, -0.05], [-0.275, -0.565, 0.4]], dtype=torch.float64)
    found = merged([D1, D2], [F1, F2], normalise="none")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    found = merged([BASE + D1, BASE + D2], [F1, F2], normalise="none") - BASE
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_each_information_may_be_divided_by_its_mean() -> None:
    for normalise in ("tensor", "model"):  # one tensor is the model
        plain = merged([D1, D2], [F1 / F1.mean(), F2 / F2.mean()], normalise="none")
        found = merged([D1, D2], [F1, F2], normalise=normalise)
        torch.testing.assert_close(found, plain, atol=1e-12, rtol=0)
        louder = merged([D1, D2], [1e9 * F1, F2], normalise=normalise)
        torch.testing.assert_close(louder, plain, atol=1e-9, rtol=0)
    dominated = merged([D1, D2], [1e9 * F1, F2], normalise="none")
    torch.testing.assert_close(dominated[F1 > 0], D1[F1 > 0], atol=1e-6, rtol=0)


def test_the_mean_of_the_model_is_over_all_its_tensors() -> None:
    states = [{"layers.0.w": D1, "layers.1.w": D2}, {"layers.0.w": D2, "layers.1.w": D1}]
    told = {"layers.0.w": {"a": F1, "b": F2}, "layers.1.w": {"a": 5 * F1, "b": F2}}
    means = {"a": torch.stack([F1, 5 * F1]).mean(), "b": F2.mean()}
    found = merge_state_dicts(
        states, [Fisher(statistics=())], names=NAMES, dtype="float64", statistics=told
    )
    by_hand = {n: {m: f / means[m] for m, f in entries.items()} for n, entries in told.items()}
    plain = [Fisher(statistics=(), normalise="none")]
    expected = merge_state_dicts(states, plain, names=NAMES, dtype="float64", statistics=by_hand)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-12, rtol=0)


def test_information_may_be_divided_by_its_mean_over_the_tensor() -> None:
    """Each tensor comes out as if it were merged alone, however large the others' information is."""
    states = [{"layers.0.w": D1, "layers.1.w": D2}, {"layers.0.w": D2, "layers.1.w": D1}]
    told = {"layers.0.w": {"a": F1, "b": F2}, "layers.1.w": {"a": 500 * F1, "b": F2}}
    links = [Fisher(statistics=(), normalise="tensor")]
    found = merge_state_dicts(states, links, names=NAMES, dtype="float64", statistics=told)
    alone = {
        "layers.0.w": merged([D1, D2], [F1, F2], normalise="tensor"),
        "layers.1.w": merged([D2, D1], [F1, F2], normalise="tensor"),
    }
    for name, tensor in alone.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-12, rtol=0)


def test_numbers_that_no_loss_depends_on_are_averaged() -> None:
    zero = torch.zeros(())  # how a file says it of a whole tensor
    for normalise in ("none", "tensor", "model"):
        found = merged([D1, D2], [zero, zero], (3.0, 1.0), normalise=normalise)
        torch.testing.assert_close(found, (3 * D1 + D2) / 4, atol=1e-12, rtol=0)


@settings(max_examples=25, deadline=None, database=None)
@given(
    seed=st.integers(0, 1000),
    weights=st.lists(st.floats(0.1, 5), min_size=2, max_size=2),
    normalise=st.sampled_from(["none", "tensor", "model"]),
    level=st.floats(1e-3, 1e3),
)
def test_equal_information_is_the_weighted_mean(
    seed: int, weights: list[float], normalise: str, level: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    models = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in NAMES]
    information = level * torch.rand(3, 4, generator=generator, dtype=torch.float64)
    found = merged(models, [information] * 2, tuple(weights), normalise=normalise)
    linear = merge_state_dicts(
        [{"w": m} for m in models], [Linear()], weights=weights, dtype="float64"
    )["w"]
    torch.testing.assert_close(found, linear, atol=1e-9, rtol=0)
    same = merged([models[0]] * 2, [information, 2 * information], normalise=normalise)
    assert torch.equal(same, models[0])


def test_broken_information_is_refused() -> None:
    for bad in (float("nan"), -1.0):
        information = F1.clone()
        information[0, 0] = bad
        with pytest.raises(CheckpointError, match=r"w: the Fisher information of 'a' holds NaN"):
            merged([D1, D2], [information, F2])
    with pytest.raises(CheckpointError, match="not negative"):
        merged([D1, D2], [F1, F2], weights=(2.0, -1.0))


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def measure(folder: Path, seed: int = 0, **leave_out: Any) -> Statistics:
    """Random information of every tensor of a model, as a file would have it."""
    generator = torch.Generator().manual_seed(seed)
    specs = Checkpoint(folder).tensor_names.specs
    values = {
        name: {"m": torch.rand(spec.shape, generator=generator)}
        for name, spec in specs.items()
        if name not in leave_out.get("without", ())
    }
    return Statistics(values, models={"m": hash_model(folder)}, measure="fisher")


def files(folders: list[Path], root: Path) -> tuple[FileRef, ...]:
    found = []
    for number, folder in enumerate(folders):
        place = root / f"measured{number}"
        place.mkdir()
        measure(folder, number).write(place)
        found.append(FileRef(str(place)))
    return tuple(found)


def inputs(folders: list[Path]) -> list[MergeInput]:
    return [MergeInput(f.name, f, fingerprint=hash_model(f)) for f in folders]


def problems(folders: list[Path], stage: Fisher) -> str:
    request = MergeRequest(inputs=tuple(inputs(folders)), strategy=(stage,))
    return "\n".join(str(problem) for problem in plan_merge(request).problems)


def test_files_are_matched_by_content_in_any_order(berts: list[Path], tmp_path: Path) -> None:
    pair = berts[:2]
    first, second = files(pair, tmp_path)
    for order, out in (((first, second), "out"), ((second, first), "turned")):
        stage = Fisher(statistics=order, normalise="none")
        merge_models(inputs(pair), strategy=[stage], out=tmp_path / out)
    name = "encoder.layer.1.output.dense.weight"
    states = [load_file(f / "model.safetensors")[name] for f in pair]
    information = [measure(f, i).values[name]["m"].double() + 1e-6 for i, f in enumerate(pair)]
    share = information[1] / (information[0] + information[1])
    found = load_file(tmp_path / "out" / "model.safetensors")
    # From the first model on the way to the second.
    addends = [states[0], states[1], states[0]]
    assert_combined(found[name], addends, [1, share, -share], roundings=5)
    turned = load_file(tmp_path / "turned" / "model.safetensors")
    assert all(torch.equal(found[n], turned[n]) for n in found)


def test_a_file_of_another_model_is_refused_before_work(berts: list[Path], tmp_path: Path) -> None:
    told = files(berts[:2], tmp_path)
    stage = Fisher(statistics=told)
    assert problems(berts[:2], stage) == ""
    said = problems([berts[0], berts[2]], stage)
    assert "nothing was measured of 'sibling3' as it is now (content " in said
    assert said.endswith("measure it again")
    assert "\n" not in said
    with pytest.raises(CheckpointError, match="nothing was measured of 'sibling3'"):
        merge_models(inputs([berts[0], berts[2]]), strategy=[stage], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_fingerprint_cannot_be_held_against_a_file(
    berts: list[Path], tmp_path: Path
) -> None:
    stage = Fisher(statistics=files(berts[:2], tmp_path))
    unknown = [MergeInput(f.name, f) for f in berts[:2]]
    with pytest.raises(CheckpointError, match="'sibling1' has no fingerprint"):
        merge_models(unknown, strategy=[stage], out=tmp_path / "out")


def test_files_that_do_not_fit_are_named(berts: list[Path], tmp_path: Path) -> None:
    """Of other numbers, absent, of one model twice, without a tensor, and with one of another shape."""
    told = files([berts[0], berts[1], berts[0]], tmp_path)
    folders = {name: tmp_path / name for name in ("norms", "lacking", "bent", "absent")}
    for name in ("norms", "lacking", "bent"):
        folders[name].mkdir()
    Statistics({"layers.0": {"a": 1.0}}, measure="delta_norms").write(folders["norms"])
    tensor = "encoder.layer.1.output.dense.weight"
    measure(berts[1], without=(tensor,)).write(folders["lacking"])
    values = {**measure(berts[1]).values, "embeddings.LayerNorm.bias": {"m": torch.rand(5)}}
    models = {"m": hash_model(berts[1])}
    Statistics(values, models=models, measure="fisher").write(folders["bent"])
    refs = {name: FileRef(str(folder)) for name, folder in folders.items()}
    for chosen, said in (
        ([refs["norms"]], "holds delta_norms, and 'fisher' needs fisher"),
        ([refs["absent"]], "there is no such statistics file"),
        (told, "'sibling1' was measured 2 times"),
    ):
        found = problems(berts[:2], Fisher(statistics=tuple(chosen)))
        assert said in found
        assert "\n" not in found
    for name, said in (
        ("lacking", f"{tensor}: nothing was measured of it in 'sibling2'; .* by a rule"),
        ("bent", r"the Fisher information of 'sibling2' has shape \[5\], not \[32\]"),
    ):
        stage = Fisher(statistics=(told[0], refs[name]))
        with pytest.raises(CheckpointError, match=said):
            merge_models(inputs(berts[:2]), strategy=[stage], out=tmp_path / "out")


def test_a_damaged_file_is_refused(berts: list[Path], tmp_path: Path) -> None:
    told = files(berts[:2], tmp_path)
    path = tmp_path / "measured0" / "statistics.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="its numbers are not those that were measured"):
        merge_models(inputs(berts[:2]), strategy=[Fisher(statistics=told)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fisher_cannot_follow_a_link_that_merges(berts: list[Path], tmp_path: Path) -> None:
    stage = Fisher(statistics=files(berts[:2], tmp_path))
    grouped = tuple(
        MergeInput(m.name, m.folder, group=m.name, fingerprint=m.fingerprint)
        for m in inputs(berts[:2])
    )
    request = MergeRequest(inputs=grouped, strategy=(Group(by=Linear()), stage))
    said = [str(p) for p in plan_merge(request).problems]
    assert any("needs what was measured of the very models" in s for s in said)


def test_information_is_read_by_rows(tmp_path: Path) -> None:
    """A file as large as the model is never in memory: no stage sees more rows than its block has."""
    seen: list[int] = []

    class Watching(Fisher):
        def _read_information(self, block: Any, model: str) -> Tensor:
            information = super()._read_information(block, model)
            seen.append(information.numel())
            return information

    generator = torch.Generator().manual_seed(1)
    models = [{"w": torch.randn(400, 8, generator=generator)} for _ in NAMES]
    told = {"w": {name: torch.rand(400, 8, generator=generator) for name in NAMES}}
    stage = Watching(statistics=())
    merge_state_dicts(models, [stage], names=NAMES, statistics=told, block=80, granule=160)
    assert max(seen) == 160
    assert sum(seen) == 2 * 2 * 3200  # once to measure, once to merge, of each of two models
