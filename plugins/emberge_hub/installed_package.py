"""Models that installed packages ship (`pkg:module`)."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emberge import CheckpointError, suggest
from emberge.interpreter import locate_package


def find_in_package(module: str, revision: str | None = None) -> Path:
    """Return the folder of the only model that an installed package ships.

    Raises:
        CheckpointError: if the package is not installed, or ships no model or several.
    """
    if revision:
        raise CheckpointError(
            f"pkg:{module}@{revision}: a package has no revisions; pin its version where it is installed"
        )
    package = locate_package(module)
    if package is None:
        hint = suggest(module, [one.name for one in pkgutil.iter_modules()])
        raise CheckpointError(
            f"pkg:{module}: no package '{module}' is installed here{hint or '; install it'}"
        )
    models = sorted(_find_models(package))
    if len(models) != 1:
        count = f"{len(models)} models; name one by its folder: " if models else "no model"
        raise CheckpointError(
            f"pkg:{module}: the package ships {count}{', '.join(map(str, models))}"
        )
    return models[0]


def _find_models(package: Path) -> Iterator[Path]:
    """Yield the folders with a model's config, except those inside another model."""
    tops = {sign.parent for sign in package.rglob("modules.json")}
    tops |= {path.parent for path in package.rglob("config.json") if _is_model_config(path)}
    yield from (top for top in tops if not tops & set(top.parents))


def _is_model_config(path: Path) -> bool:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(config, dict) and bool({"model_type", "architectures"} & set(config))
