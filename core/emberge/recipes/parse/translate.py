"""A recipe's text, translated into one of ours where another tool wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from emberge.contracts import TranslatedRecipe
from emberge.errors import Problem, RecipeError, suggest
from emberge.plugins import Plugins


def read_text(path: Path) -> str:
    """Read the text of a recipe file.

    Raises:
        RecipeError: when there is none that can be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise RecipeError(f"{path}: there is no such recipe{suggest(path.name, beside)}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: this is a folder; name the recipe in it") from None
    except UnicodeDecodeError as error:
        message = f"this is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise RecipeError(Problem(message, str(path))) from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from None


def translate(text: str, plugins: Plugins, path: Path | None = None) -> TranslatedRecipe | None:
    """Return another tool's recipe as one of ours, or None for a text that no plugin recognises.

    Raises:
        RecipeError: for what is wrong with the other tool's recipe.
    """
    found = plugins.hook.read_recipe(text=text, path=path)
    return TranslatedRecipe(found) if isinstance(found, str) else found


def to_recipe_text(
    text: str, plugins: Plugins, path: Path | None
) -> tuple[str, Callable[[int], str]]:
    """Return the recipe as one of ours, and a function from its line numbers to `file:line`."""
    label = str(path) if path else "recipe"
    translated = translate(text, plugins, path)
    if translated is None:
        return text, lambda line: f"{label}:{line}"
    if not translated.lines:
        return translated.text, lambda line: f"{label} (translated):{line}"
    return translated.text, lambda line: f"{label}:{translated.line(line)}"
