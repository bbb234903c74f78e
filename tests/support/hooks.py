"""The hooks by what they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emberge import (
    hookspecs,
)

SPECS: dict[str, Callable[..., Any]] = {
    name: value for name, value in vars(hookspecs).items() if hasattr(value, "emberge_spec")
}


REGISTERING = {name for name in SPECS if name.startswith("register_")}


ASKING = {name for name, spec in SPECS.items() if spec.emberge_spec["firstresult"]}


EVENTS = set(SPECS) - REGISTERING - ASKING
