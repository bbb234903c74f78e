"""Where we part from mergekit 0.1.5 on purpose: each a small case that shows why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.support.chains import chain
from tests.support.merge_in_memory import merge_state_dicts
from tests.support.tolerance import assert_near

with warnings.catch_warnings():
    # mergekit's dependencies warn about their own deprecations while they are imported.
    warnings.simplefilter("ignore")
    from mergekit.merge_methods.api import merge_tensors


def both(
    name: str,
    method: str,
    base: Tensor,
    models: Sequence[Tensor],
    parameters: dict[str, Any],
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """(ours, mergekit's) of one tensor."""
    weights = parameters.get("weight")
    given = {
        k: [0.0, *v] if isinstance(v, list) else v for k, v in parameters.items() if k != "weight"
    }
    if weights is not None:
        given["weight"] = dict(enumerate(weights, 1))
    ours = merge_state_dicts(
        [{"w": m} for m in models], chain(name, **options), {"w": base}, weights
    )["w"]
    with torch.no_grad():
        found = merge_tensors([base, *models], method, parameters=given, base_index=0)
    return ours, found


def siblings(shape: tuple[int, ...], noise: float, count: int = 2) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(4)
    base = 0.02 * torch.randn(shape)
    return base, [base + noise * (i + 1) * torch.randn(shape) for i in range(count)]


def test_sce_weighs_small_changes_too() -> None:
    """mergekit takes equal weights once mean squares sum to less than 1e-6, as after most fine-tuning."""
    base, models = siblings((40, 30), 1e-4)
    ours, found = both("sce", "sce", base, models, {})
    same, _ = both("sce", "sce", base, models, {}, least_energy=1e-6)
    assert_near(same, found, addends=8)
    grown, _ = both("sce", "sce", base * 1000, [m * 1000 for m in models], {})
    assert_near(ours * 1000, grown, addends=8)
    assert float((ours - found).abs().max()) > 1e-5


def test_sce_divides_by_the_weights_that_agree_however_small() -> None:
    """mergekit divides by at least 1e-6, so what a model alone changed is shrunk by how little it did."""
    base = torch.zeros(1, 4)
    loud, faint = torch.tensor([[1.0, 1, 1, 0]]), torch.tensor([[0.0, 0, 0, 1e-4]])
    ours, found = both("sce", "sce", base, [loud, faint], {})
    torch.testing.assert_close(ours, torch.tensor([[1.0, 1, 1, 1e-4]]))
    assert float(found[0, 3]) < 1e-6


def test_breadcrumbs_leave_something_of_a_tiny_tensor() -> None:
    """int(density · n) is 0 for three elements at a quarter: mergekit leaves nothing."""
    base, models = torch.zeros(3), [torch.tensor([0.1, 0.3, 0.2])]
    parameters = {"weight": [1.0], "density": 0.25, "gamma": 0.0}
    ours, found = both(
        "breadcrumbs", "breadcrumbs", base, models, parameters, density=0.25, gamma=0.0
    )
    assert found.tolist() == [0, 0, 0]
    torch.testing.assert_close(ours, torch.tensor([0, 0.3, 0]))


def test_slerp_of_small_angles_is_no_straight_line() -> None:
    """Above a cosine of 0.9995 mergekit's slerp is linear, which is nearly always."""
    torch.manual_seed(2)
    first = torch.randn(50, 20)
    second = first + 0.02 * torch.randn(50, 20)
    models = [{"w": first}, {"w": second}]
    ours = merge_state_dicts(models, chain("slerp"))["w"]
    straight = merge_state_dicts(models, chain("linear"))["w"]
    found = merge_tensors([first, second], "slerp", parameters={"t": 0.5}, base_index=0)
    torch.testing.assert_close(found, straight)
    assert float((ours - straight).norm() / straight.norm()) > 2e-5
    assert float(ours.norm()) > float(straight.norm())
