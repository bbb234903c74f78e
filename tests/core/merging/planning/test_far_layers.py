"""Models whose layers are far apart are warned about before a merge, at the cost of a few small reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Model
from emberge.merging import MergeInput, MergeRequest, compare_weights, plan_merge
from emberge.merging.planning import warn
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.registered import CHAINS

LINEAR = tuple(CHAINS["linear"][0])
ARITHMETIC = tuple(CHAINS["task_arithmetic"][0])


class CountedFiles(warn._OpenFiles):
    readings = 0

    def read_numbers(self, *where: Any) -> tuple[float, ...]:
        CountedFiles.readings += 1
        return super().read_numbers(*where)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> type[CountedFiles]:
    """Every plan of the test, in a process that has estimated nothing."""
    monkeypatch.setattr(warn, "_OpenFiles", CountedFiles)
    monkeypatch.setattr(warn, "_ESTIMATES", {})
    monkeypatch.setattr(CountedFiles, "readings", 0)
    return CountedFiles


def warnings(*folders: Path) -> list[str]:
    inputs = tuple(MergeInput(folder.name, folder) for folder in folders)
    plan = plan_merge(MergeRequest(inputs=inputs, strategy=LINEAR))
    assert not plan.problems
    return [warning for warning in plan.warnings if "cosine" in warning]


def test_siblings_pass_and_strangers_are_named(
    bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    assert warnings(bert, *berts[:2]) == []
    stranger = tiny.checkpoint(tmp_path / "stranger", seed=9)
    (warning,) = warnings(bert, berts[0], stranger)
    assert "'stranger'" in warning
    assert "3 of 3 layers" in warning


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_estimate_is_near_the_cosine_of_all_weights(
    dtype: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small runs, so that a part of these tiny matrices is read: 64 of 1,024 or more.
    monkeypatch.setattr(warn, "_RUN", 16)
    other = Path(shutil.copytree(bert, tmp_path / "other"))
    own = load_file(bert / "model.safetensors")
    torch.manual_seed(0)
    far = {n: t + 1.5 * t.std() * torch.randn_like(t) if t.ndim > 1 else t for n, t in own.items()}
    save_file({n: t.to(getattr(torch, dtype)) for n, t in far.items()}, other / "model.safetensors")
    inputs = (MergeInput("a", bert), MergeInput("b", other))
    plan = plan_merge(MergeRequest(inputs=inputs, strategy=LINEAR))
    (warning,) = (warning for warning in plan.warnings if "cosine" in warning)
    whole = compare_weights(Model("a", bert, ""), Model("b", other, ""))
    exact = {n: whole.of(f"layers.{n}").cosine for n in range(3)}  # type: ignore[union-attr]
    monkeypatch.setattr(warn, "_ESTIMATES", {})
    CountedFiles.readings = 0
    with CountedFiles() as files:
        found = warn.estimate_cosines(plan, files).layers[1]
    # 384 numbers a layer: four standard errors of a correlation near 0.55.
    for layer, cosine in exact.items():
        assert cosine is not None
        assert found[layer] == pytest.approx(cosine, abs=4 * (1 - cosine**2) / 384**0.5)
    assert "'b'" in warning
    # Six matrices a layer, of both models.
    assert CountedFiles.readings == 2 * 3 * 6 * warn._PLACES


def test_a_second_plan_of_the_same_models_reads_no_numbers(
    bert: Path, berts: list[Path], counted: type[CountedFiles]
) -> None:
    inputs = tuple(MergeInput(folder.name, folder) for folder in berts)
    request = MergeRequest(inputs=inputs, strategy=ARITHMETIC, base=MergeInput("base", bert))
    first = plan_merge(request)
    readings = counted.readings
    # Once a model, and once of the base, whatever the number of pairs: four small matrices a layer
    # are read whole, and two large ones in four places.
    assert readings == (len(berts) + 1) * 3 * (4 + 2 * warn._PLACES)
    second = plan_merge(request)
    assert counted.readings == readings
    assert (second.warnings, second.change_cosines) == (first.warnings, first.change_cosines)


def test_numbers_of_a_changed_file_are_read_again(
    bert: Path, tmp_path: Path, counted: type[CountedFiles]
) -> None:
    sibling = Path(shutil.copytree(bert, tmp_path / "other"))
    assert warnings(bert, sibling) == []
    readings = counted.readings
    stranger = tiny.checkpoint(tmp_path / "stranger", seed=9)
    shutil.copyfile(stranger / "model.safetensors", sibling / "model.safetensors")
    (warning,) = warnings(bert, sibling)
    assert "'other'" in warning
    assert counted.readings == 2 * readings
