"""Siblings and strangers: the cosines of models' changes, in words, from small reads before a merge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from emberge import Model
from emberge.merging import (
    MergeInput,
    MergeRequest,
    compare_weights,
    kinship_words,
    plan_merge,
    summary,
)
from safetensors.torch import load_file, save_file

from tests.support.registered import CHAINS

ARITHMETIC = tuple(CHAINS["task_arithmetic"][0])


def changed(base: Path, out: Path, common: float, seed: int) -> Path:
    """A model whose change is `common` times one that all share, and one of its own."""
    shutil.copytree(base, out)
    state = load_file(base / "model.safetensors")
    shared, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        first = torch.randn(tensor.shape, generator=shared)
        second = torch.randn(tensor.shape, generator=own)
        state[name] = tensor + 0.01 * (common * first + second)
    save_file(state, out / "model.safetensors", {"format": "pt"})
    return out


def planned(base: Path | None, *folders: Path) -> tuple[tuple[float, ...], str]:
    inputs = tuple(MergeInput(folder.name, folder) for folder in folders)
    chain = ARITHMETIC if base is not None else tuple(CHAINS["linear"][0])
    origin = MergeInput("base", base) if base is not None else None
    plan = plan_merge(MergeRequest(inputs=inputs, strategy=chain, base=origin))
    assert not plan.problems
    return plan.change_cosines, "\n".join(summary(plan))


def test_a_plan_names_siblings_and_strangers(bert: Path, tmp_path: Path) -> None:
    near = [changed(bert, tmp_path / f"near{i}", 3.0, 10 + i) for i in range(3)]
    cosines, lines = planned(bert, *near)
    assert len(cosines) == 3
    assert cosines == pytest.approx([0.9] * 3, abs=0.05)
    assert "members     siblings, cosine of their changes 0.9" in lines
    far = [changed(bert, tmp_path / f"far{i}", 0.0, 20 + i) for i in range(2)]
    cosines, lines = planned(bert, *far)
    assert cosines == pytest.approx([0.0], abs=0.05)
    assert "members     strangers, " in lines
    _, lines = planned(None, *far)
    assert "strangers" not in lines  # no base, and so no changes


def test_the_estimate_is_near_the_cosine_of_all_changes(bert: Path, tmp_path: Path) -> None:
    first, second = (changed(bert, tmp_path / f"m{i}", 1.0, 30 + i) for i in range(2))
    (estimate,), _ = planned(bert, first, second)
    models = [Model(folder.name, folder, "") for folder in (first, second, bert)]
    exact = compare_weights(*models).change_cosine()
    assert exact is not None
    # 1,024 or more numbers of each matrix: six standard errors of a correlation near 0.5.
    assert estimate == pytest.approx(exact, abs=6 * (1 - exact**2) / 6000**0.5)


def test_a_model_that_did_not_change_has_no_cosine(bert: Path, tmp_path: Path) -> None:
    same = Path(shutil.copytree(bert, tmp_path / "same"))
    other = changed(bert, tmp_path / "other", 1.0, 3)
    assert planned(bert, same, other)[0] == ()
    third = changed(bert, tmp_path / "third", 1.0, 4)
    (cosine,), _ = planned(bert, same, other, third)
    assert 0 < cosine < 1


@pytest.mark.parametrize(
    ("cosines", "word"),
    [((0.9, 0.8), "siblings"), ((0.08, 0.12), "relatives"), ((0.0, -0.1), "strangers")],
)
def test_the_words_follow_the_mean(cosines: tuple[float, ...], word: str) -> None:
    assert kinship_words(cosines).startswith(word)
    assert f"{min(cosines):.2f} to {max(cosines):.2f}" in kinship_words(cosines)
    assert kinship_words(()) == ""
