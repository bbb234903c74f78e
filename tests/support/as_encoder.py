"""Models made into encoders by the step `as_encoder`, and what its check finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge import Model, ModelRef
from emberge_bidirlm import AsEncoder
from emberge_encoder import TextEncoder

from tests.support.bench import Bench
from tests.support.glance import Glance


def encoder(folder: Path, root: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    """The folder that `as_encoder` makes of a model, and the artifact's details."""
    bench = Bench(root)
    bench.many[str(folder)] = [Model("causal", folder, "its content")]
    step = AsEncoder(model=ModelRef(str(folder)), backbone=TextEncoder(), **options)
    return bench.folder, dict(step.run(bench).details)


def problems(folder: Path, **options: Any) -> list[tuple[str, str]]:
    """Places and messages of what a check finds."""

    class Here(Glance):
        def model(self, reference: ModelRef) -> Path:  # type: ignore[override]
            return folder

    step = AsEncoder(model=ModelRef(str(folder)), backbone=TextEncoder(), **options)
    return [(problem.where, problem.message) for problem in step.check(Here())]
