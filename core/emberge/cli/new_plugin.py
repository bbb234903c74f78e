"""A new plugin: a separate repository, written from the example that emberge ships.

The example is the only template, so the files that users get are linted, type-checked and tested here.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from emberge.errors import PluginError, RecipeError
from emberge.files import fill_once

EXAMPLE = "acme"
# Folders that running the example's tests may leave.
_SKIPPED_NAMES = re.compile(r"\.|__pycache__|(build|dist)$|.*\.egg-info$")


def write_plugin(name: str, folder: Path) -> Path:
    """Write a plugin's repository as `folder`, which must not exist yet, and return it.

    `name` is the plugin's name in recipes (`name:component`). The repository has a package `emberge_<name>`
    with one merge strategy, one loss and one step, their tests, a recipe, a README and a pyproject.

    Raises:
        RecipeError: if the name cannot be a plugin's name, or the folder exists.
        PluginError: if this installation of emberge lacks the example.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise RecipeError(
            f"a plugin cannot be called '{name}': a name is small letters, digits and single "
            "underscores, a letter first, and no word of Python"
        )
    target = Path(folder)
    if target.exists() or target.is_symlink():
        raise RecipeError(f"{target} exists already; choose another place or remove it first")
    source = _find_example()

    def rename(text: str) -> str:
        text = text.replace(f"emberge-{EXAMPLE}", f"emberge-{name.replace('_', '-')}")
        return text.replace(EXAMPLE, name)

    def fill(side_folder: Path) -> None:
        for file in sorted(source.rglob("*")):
            relative = file.relative_to(source)
            if file.is_file() and not any(map(_SKIPPED_NAMES.match, relative.parts)):
                copy = side_folder / rename(str(relative))
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(rename(file.read_text("utf-8")), "utf-8")

    try:
        fill_once(target, fill)
    except OSError as error:
        raise RecipeError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def _find_example() -> Path:
    package = Path(__file__).parents[1]
    for root in (package, package.parents[1]):  # the wheel, a checkout
        folder = root / "examples" / "third_party_plugin"
        if folder.is_dir():
            return folder
    raise PluginError(f"{package / 'examples'} is missing; install emberge again")
