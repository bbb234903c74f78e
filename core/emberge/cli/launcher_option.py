"""The launcher of a command line: `--launcher local`, or with options as a recipe writes a component's."""

from __future__ import annotations

from pathlib import Path

from emberge.contracts import Launcher
from emberge.errors import Problem, RecipeError
from emberge.plugins import Plugins
from emberge.processes import adopt_launcher, rank_and_size
from emberge.recipes import BROKEN, HANDLERS, Builder, OptionPath, build_component
from emberge.yaml_nodes import read_yaml

_WHERE = "--launcher"


def launcher_of(text: str | None, plugins: Plugins, ranks: int | None) -> Launcher | None:
    """Build the launcher that a command line names, with its options; None where it names none.

    Raises:
        RecipeError: for one that is not there, wrong options, or a run by several ranks.
    """
    if text is None:
        return None
    problems: list[Problem] = []
    node = read_yaml(text, lambda _: _WHERE, problems, what="the launcher")
    if node is None or problems:
        raise RecipeError(problems or f"{_WHERE} needs a name; `emberge list --kind launcher`")
    builder = Builder(HANDLERS, plugins, Path(), {}, {})
    built = build_component(builder, (Launcher,), node, OptionPath(f"option '{_WHERE}'"))
    if builder.problems or built is None or built[1] is BROKEN:
        raise RecipeError(builder.problems)
    adopt_launcher(ranks)
    if ranks not in (None, 1) or rank_and_size()[1] > 1:
        raise RecipeError(
            f"{_WHERE} runs several steps, each by a process of its own, and --ranks one step by several; "
            "leave one of them out"
        )
    launcher: Launcher = built[1]
    return launcher
