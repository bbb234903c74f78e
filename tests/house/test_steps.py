"""Facts that every step states of itself are ones that the runner can use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import get_args

import pytest
from emberge import ArtifactKind, Step, load_plugins

STEPS = {one.full_name: one.type for one in load_plugins(block=()).components if one.kind == "step"}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_step_produces_a_kind_of_artifact_and_loads_modules_that_exist(name: str) -> None:
    step: type[Step] = STEPS[name]
    assert step.produces in get_args(ArtifactKind)
    # A property depends on the options.
    loads = step.loads if isinstance(step.loads, tuple) else ()
    modules = [name.partition(":") for name in loads]
    assert [name for name, _, _ in modules if find_spec(name) is None] == []
    assert all(callable(getattr(import_module(m), name)) for m, _, name in modules if name)
