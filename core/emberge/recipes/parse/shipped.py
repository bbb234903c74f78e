"""The recipes that come with emberge: their names, files and opening comments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with emberge: its file and its opening comment."""

    name: str
    path: Path
    description: str


def list_shipped_recipes() -> dict[str, ShippedRecipe]:
    """Return the recipes that come with emberge, by name (`boom/demo`)."""
    package = Path(__file__).parents[2]
    places = (package / "merge_recipes", package.parents[1] / "merge_recipes")
    folder = next((candidate for candidate in places if candidate.is_dir()), None)
    if folder is None:
        return {}
    # Recipes share catalogues of data, which are not recipes.
    paths = sorted(path for path in folder.rglob("*.yaml") if path.name != "datasets.yaml")
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    return {
        name: ShippedRecipe(name, path, _read_opening_comment(path.read_text(encoding="utf-8")))
        for name, path in zip(names, paths, strict=True)
    }


def _read_opening_comment(text: str) -> str:
    """Return the comment at the beginning of a file."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines).strip()
