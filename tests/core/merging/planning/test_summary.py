"""The summary of a plan takes time in proportion to the number of its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emberge.merging import MergeInput, MergeRequest, plan_merge, summary

from tests.support.registered import CHAINS


def test_the_elements_of_a_plan_are_counted_once(
    berts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tuple(MergeInput(folder.name, folder) for folder in berts)
    plan = plan_merge(MergeRequest(inputs=inputs, strategy=tuple(CHAINS["linear"][0])))
    specs = type(plan.tensors[0].out)
    count, counted = specs.elements.fget, []  # type: ignore[attr-defined]

    def count_elements(spec: Any) -> int:
        counted.append(spec)
        return int(count(spec))

    monkeypatch.setattr(specs, "elements", property(count_elements))
    summary(plan)
    # A few counts of each tensor, in each model and in the result.
    assert 0 < len(counted) < 8 * len(plan.tensors) * (len(inputs) + 1)
    assert 8 * (len(inputs) + 1) < len(plan.tensors)
