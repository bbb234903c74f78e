"""References `pkg:module` to models that installed packages ship."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError


def in_package(module: str, revision: str | None = None) -> Path:
    """Return the folder of the only model that an installed package ships.

    Raises:
        CheckpointError: if the package is not installed, or ships no model or several.
    """
    if revision:
        raise CheckpointError(
            f"pkg:{module}@{revision}: a package has no revisions; pin its version where it is installed"
        )
    models = sorted(_find_models(_find_package(module)))
    if not models:
        raise CheckpointError(
            f"pkg:{module}: the package ships no model: no folder in it has modules.json or config.json"
        )
    if len(models) > 1:
        raise CheckpointError(
            f"pkg:{module}: the package ships {len(models)} models; name one by its folder: "
            + ", ".join(map(str, models))
        )
    return models[0]


def _find_package(module: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise CheckpointError(
            f"pkg:{module}: no package '{module}' is installed here; install the one that ships the model"
        )
    return [Path(place) for place in spec.submodule_search_locations or ()]


def _find_models(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        tops = {sign.parent for sign in folder.rglob("modules.json")}
        tops |= {c.parent for c in folder.rglob("config.json") if _is_model_config(c)}
        yield from (top for top in tops if not tops & set(top.parents))


def _is_model_config(path: Path) -> bool:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(config, dict) and bool({"model_type", "architectures"} & set(config))
