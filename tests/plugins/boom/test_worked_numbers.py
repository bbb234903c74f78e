"""Numbers of BOOM (arXiv:2602.05787) worked by hand, those that stand beside no single component.

Loss, bags, costs, spherical means, SCE, clusters and means of scores have theirs in the tests of each.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from emberge import Plugins
from emberge_merge import Linear, ModelStock, MultiSlerp
from torch import Tensor

from tests.plugins.boom.recipes import details, run
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.result_folders import artifact_of


def at_cosine(cosine: float, count: int) -> list[Tensor]:
    """Unit vectors, every two of them at this cosine."""
    gram = torch.full((count, count), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    return list(torch.linalg.cholesky(gram))


def test_model_stock_falls_back_to_the_base_where_changes_hardly_agree() -> None:
    changes = at_cosine(0.1, 4)
    base = {"w": torch.zeros(4, dtype=torch.float64)}
    merged = merge_state_dicts([{"w": c} for c in changes], [ModelStock()], base, dtype="float64")
    mean = torch.stack(changes).mean(0)
    share = float((merged["w"] @ mean) / (mean @ mean))
    assert share == pytest.approx(0.3077, abs=5e-5)
    torch.testing.assert_close(merged["w"], share * mean)


def test_on_models_of_one_base_multi_slerp_is_nearly_linear() -> None:
    torch.manual_seed(0)
    base, *changes = (v / v.norm() for v in torch.randn(5, 100_000, dtype=torch.float64))
    models = [base + 0.02 * change for change in changes]
    cosine = models[0] @ models[1] / (models[0].norm() * models[1].norm())
    assert float(cosine) == pytest.approx(0.9996, abs=2e-5)
    states, weights = [{"w": m} for m in models], (0.4, 0.3, 0.2, 0.1)
    linear, projected, log = (
        merge_state_dicts(states, [how], None, weights, dtype="float64")["w"]
        for how in (Linear(), MultiSlerp(mode="projected"), MultiSlerp())
    )
    assert float((projected - linear).norm() / linear.norm()) == pytest.approx(1.4e-4, rel=0.02)
    assert float((log - linear).norm() / linear.norm()) < 2e-4


UPDATED = """
steps:
  updated:
    merge: {models: [./old, ./new], weights: size, strategy: linear}
"""


def test_an_update_of_the_papers_size_weighs_five_to_four(
    berts: list[Path], tmp_path: Path, plugins: Plugins
) -> None:
    # 2.0 M old rows; 0.8 M new ones with a core of 40 % of the old.
    sizes = {"old": 2_000_000, "new": 800_000 + round(0.4 * 2_000_000)}
    for (name, size), model in zip(sizes.items(), berts, strict=False):
        folder = shutil.copytree(model, tmp_path / name)
        said = {"kind": "model", "size": size, "parents": [], "details": {}, "warnings": []}
        (folder / "artifact.json").write_text(json.dumps(said))
    made = run(tmp_path, UPDATED, plugins, head="")["updated"]
    weights = details(made).weights
    assert weights == pytest.approx({"./old": 0.5556, "./new": 0.4444}, abs=5e-5)
    assert artifact_of(made).size == 3_600_000
    assert details(made).training_cost is None, "neither was trained in this run"
