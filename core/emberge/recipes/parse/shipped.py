"""The recipes that come with emberge: their names, files and opening comments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

START_HERE = ("boom/demo", "data/mine", "merges/linear", "merges/ties", "smaller/trim")
"""Names of the recipes that a newcomer runs first."""


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with emberge: its file and its opening comment."""

    name: str
    path: Path
    description: str

    @property
    def group(self) -> str:
        """Heading in a list of recipes: those to start with, of papers, or for a laptop."""
        if self.name in START_HERE:
            return "start here"
        needs_more = "not run here: needs" in self.description
        return "papers, at their scale: a hub and GPUs" if needs_more else "studies on a laptop"


def list_shipped_recipes() -> dict[str, ShippedRecipe]:
    """Return the recipes that come with emberge, by name (`boom/demo`), those of one group together."""
    package = Path(__file__).parents[2]
    places = (package / "merge_recipes", package.parents[1] / "merge_recipes")
    folder = next((candidate for candidate in places if candidate.is_dir()), None)
    if folder is None:
        return {}
    # Recipes share catalogues of data, which are not recipes.
    paths = sorted(path for path in folder.rglob("*.yaml") if path.name != "datasets.yaml")
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    recipes = [
        ShippedRecipe(name, path, _read_opening_comment(path.read_text(encoding="utf-8")))
        for name, path in zip(names, paths, strict=True)
    ]
    recipes.sort(key=lambda recipe: (recipe.name not in START_HERE, recipe.group, recipe.name))
    return {recipe.name: recipe for recipe in recipes}


def _read_opening_comment(text: str) -> str:
    """Return the comment at the beginning of a file."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines).strip()
