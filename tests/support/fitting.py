"""A training by `fit` from keyword arguments: those of the job, of the call and of the machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from emberge import Machine
from emberge.training import FitJob, FitResult, fit


def run_fit(*, device: str = "cpu", ranks: int = 1, shard: bool = False, **given: Any) -> FitResult:
    """Run a training; what is not given is a default that writes no token store and logs nothing."""
    names = {one.name for one in dataclasses.fields(FitJob)}
    call: Mapping[str, Any] = {
        "store": None,
        "progress": lambda *_: None,
        "metric": lambda *_: None,
        **{name: value for name, value in given.items() if name not in names},
    }
    job = FitJob(**{name: value for name, value in given.items() if name in names})
    return fit(job, machine=Machine((device,), ranks=ranks, shard=shard), **call)
