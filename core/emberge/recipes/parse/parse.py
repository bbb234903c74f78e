"""The reading of a recipe: YAML becomes steps of built components, and problems name their `file:line`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emberge.contracts import Step, StepRef, TranslatedRecipe
from emberge.errors import Problem, RecipeError, suggest
from emberge.options import BROKEN, HANDLERS, Builder, Instance, OptionPath, build_component
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.foreach import NAME, Combination, Substitution, find_step_uses, rows_of
from emberge.recipes.parse.needed_plugins import load_needed_plugins
from emberge.recipes.parse.overrides import override
from emberge.recipes.parse.python_data import to_yaml_data
from emberge.recipes.recipe import Recipe, RecipeStep, UnsoundStep
from emberge.yaml_nodes import (
    Fields,
    Node,
    Scalar,
    describe_node,
    node_of,
    read_yaml,
    write_yaml,
)

_KEYS = ("seed", "plugins", "steps")


def read_text(path: Path) -> str:
    """Read the text of a recipe file.

    Raises:
        RecipeError: if there is no such file, or it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        sibling_names = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise RecipeError(
            f"{path}: there is no such recipe{suggest(path.name, sibling_names)}"
        ) from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: this is a folder; name the recipe in it") from None
    except UnicodeDecodeError as error:
        message = f"this is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise RecipeError(Problem(message, str(path))) from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from None


def translate(text: str, plugins: Plugins, path: Path | None = None) -> TranslatedRecipe | None:
    """Return another tool's recipe as one of ours, or None if no plugin recognises the text.

    Raises:
        RecipeError: if the other tool's recipe is wrong.
    """
    translation = plugins.hook.read_recipe(text=text, path=path)
    return TranslatedRecipe(translation) if isinstance(translation, str) else translation


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


def load_recipe(
    path: Path | str, plugins: Plugins | None = None, overrides: Sequence[str] = ()
) -> Recipe:
    """Read a recipe file; `overrides` have the form of `--set`: `step.kind.option=value`.

    `plugins` defaults to all that are installed.

    Raises:
        RecipeError: if there are problems; has every problem of the recipe, each with `file:line`.
    """
    path = Path(path)
    return draft_recipe(read_text(path), plugins, path=path, overrides=overrides).require_sound()


def parse_recipe(
    recipe: str | Mapping[str, Any],
    plugins: Plugins | None = None,
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
) -> Recipe:
    """Read a recipe from its text, or from Python data of the same form: `{"steps": {id: {kind: options}}}`.

    Paths in it are relative to the folder of `path`, or else to the current folder. `plugins` defaults to all
    that are installed. In Python data, a path or a step's result may stand for its text. Evaluation sets may
    be three dicts, `{"queries": {id: text}, "corpus": {id: text}, "relevant": {id: set of ids}}`.

    Raises:
        RecipeError: if there are problems; has every problem of the recipe, each with `file:line`, or with
            its place in the data: `recipe.steps.boom.merge.strategy`.
    """
    return draft_recipe(recipe, plugins, path=path, overrides=overrides).require_sound()


def draft_recipe(
    recipe: str | Mapping[str, Any],
    plugins: Plugins | None = None,
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    allow_plugins: bool = False,
    data_folder: Path | None = None,
) -> Recipe:
    """Read a recipe as `parse_recipe` does; return its sound steps, with every problem of the others.

    Evaluation data in Python data are written to `data_folder` or, without it, kept until the process ends.

    `check_recipe` takes such a draft and adds the problems of models and data. With `allow_plugins`, the
    plugin files that the recipe names are loaded into `plugins`.

    Raises:
        RecipeError: if the text is no YAML, or no mapping, or a plugin is missing that the recipe needs.
    """
    plugins = plugins or load_plugins()
    problems: list[Problem] = []
    if isinstance(recipe, str):
        text, place = to_recipe_text(recipe, plugins, path)
        root = read_yaml(text, place, problems)
    else:
        data = to_yaml_data(recipe, "recipe", data_folder)
        text, root = write_yaml(data), node_of(data, "recipe", deep_places=True)
    if root is not None and not isinstance(root, Fields):
        problems.append(
            Problem(f"a recipe is a mapping with `steps`, not {describe_node(root)}", root.where)
        )
    if not isinstance(root, Fields):
        raise RecipeError(problems)
    folder = path.parent if path else Path()
    missing_plugins = [
        *load_needed_plugins(root.entries.get("plugins"), plugins, folder, allowed=allow_plugins)
    ]
    if missing_plugins:  # the names that they would add are not known
        raise RecipeError(sort_problems([*problems, *missing_plugins]))
    root = override(root, overrides, problems)
    built = build_recipe(root, plugins, folder, problems)
    return replace(built, path=path, text=text, overrides=tuple(overrides))


def build_recipe(
    root: Fields, plugins: Plugins, folder: Path, problems: Sequence[Problem] = ()
) -> Recipe:
    """Build the recipe of a mapping of nodes, as a draft; paths in it are relative to `folder`.

    The draft has every problem of the recipe, and `problems`.
    """
    reading = _RecipeReader(plugins, folder, [*problems])
    recipe = reading.recipe(root)
    return replace(recipe, problems=sort_problems(reading.problems))


def sort_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return each problem once, those of `--set` first, then by line."""
    return tuple(sorted(dict.fromkeys(problems), key=_sort_key))


def _sort_key(problem: Problem) -> tuple[bool, int]:
    """Return the key that sorts problems by line, problems of `--set` first."""
    line = problem.where.rpartition(":")[2]
    return (line.isdecimal(), int(line) if line.isdecimal() else 0)


@dataclass
class _Group:
    """A step as written in the recipe, and its instances after variables were substituted."""

    id: str
    where: str
    kind: str
    kind_where: str
    options: list[tuple[Combination, Node]] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    @property
    def needs(self) -> set[str]:
        """The groups that this group uses."""
        return {use.group for _, node in self.options for use in find_step_uses(node)}


@dataclass
class _RecipeReader:
    """The reader of one recipe, which collects every problem."""

    plugins: Plugins
    folder: Path
    problems: list[Problem]
    instances: dict[str, list[Instance]] = field(default_factory=dict)
    steps: list[RecipeStep] = field(default_factory=list)
    unsound: list[UnsoundStep] = field(default_factory=list)

    def refuse(self, message: str, where: str) -> None:
        self.problems.append(Problem(message, where))

    def recipe(self, root: Fields) -> Recipe:
        for key in root.entries:
            if key not in _KEYS and not key.startswith("x-"):
                hint = suggest(key, _KEYS)
                hint = hint or f"; it has {', '.join(_KEYS)} and x-… of your own"
                self.refuse(f"a recipe has no '{key}'{hint}", root.line(key))
        seed = self._read_seed(root.entries.get("seed"))
        written = root.entries.get("steps")
        if not isinstance(written, Fields) or not written.entries:
            self.refuse("a recipe needs `steps: {id: {kind: options}}`", root.line("steps"))
            return Recipe(seed, ())
        groups = self._read_groups(written)
        unused_by_group = self._refuse_unused(groups)
        for group in self._sort_groups(groups):
            self._build_instances(group)
        self._refuse_twins(unused_by_group)
        return Recipe(seed, tuple(self.steps), unsound=tuple(self.unsound))

    def _sort_groups(self, groups: Sequence[_Group]) -> list[_Group]:
        """Return the groups, each after those that it needs, otherwise in the order of the file.

        If groups need one another in a ring, a problem is noted, and one of them comes before what it needs.
        """
        ordered: dict[str, _Group] = {}

        def add(group: _Group, path: list[str]) -> None:
            if group.id in path:
                ring = [*path[path.index(group.id) :], group.id]
                first = next(other for other in groups if other.id in ring)
                self.refuse(_describe_ring(ring), first.where)
            elif group.id not in ordered:
                needs = group.needs
                for needed in [other for other in groups if other.id in needs]:
                    add(needed, [*path, group.id])
                ordered[group.id] = group

        for group in groups:
            add(group, [])
        return list(ordered.values())

    def _read_seed(self, node: Node | None) -> int:
        if node is None:
            return 0
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            self.refuse(
                f"the seed needs a whole number from 0, not {describe_node(node)}", node.where
            )
            return 0
        return value

    # ── steps as they are written ───────────────────────────────────────────────────────────────

    def _read_groups(self, written: Fields) -> list[_Group]:
        name_by_folded: dict[str, str] = {}
        groups: list[_Group] = []
        for name, node in written.entries.items():
            where = written.line(name)
            if not re.fullmatch(NAME, name):
                self.refuse(f"a step's id is letters, digits, _ and -, not '{name}'", where)
            equal_name = name_by_folded.setdefault(name.casefold(), name)
            if equal_name != name:
                self.refuse(f"'{equal_name}' and '{name}' would be one folder on some disks", where)
            group = self._read_group(name, node, where, list(written.entries))
            if group is None or not group.options:
                # Steps that use this one are built as if it were sound.
                self.instances[name] = [Instance(name, {}, "")]
                self.unsound.append(UnsoundStep(name))
            groups += [group] if group and group.options else []
        return groups

    def _read_group(self, name: str, node: Node, where: str, steps: list[str]) -> _Group | None:
        kinds = [k for k in node.entries if k != "foreach"] if isinstance(node, Fields) else []
        if len(kinds) != 1 or not isinstance(node, Fields):
            self._refuse_kinds(name, node, kinds, where)
            return None
        (kind,) = kinds
        rows = rows_of(node.entries.get("foreach"), self.problems)
        group = _Group(name, where, kind, node.line(kind))
        group.variables = set(rows[0].nodes) if rows else set()
        before = len(self.problems)
        for variable in group.variables & set(steps):
            self.refuse(f"'{variable}' is a step; name the variable differently", where)
        literal_substitution = Substitution({}, steps, self.problems)
        for row in rows:
            nodes = {variable: literal_substitution(value) for variable, value in row.nodes.items()}
            substitution = Substitution(nodes, steps, self.problems)
            options = substitution(node.entries[kind])
            group.options.append((replace(row, nodes=nodes), options))
            group.used |= substitution.used
        if len(self.problems) > before:
            group.used |= group.variables  # a misspelt variable is not also reported as unused
        return group

    def _refuse_unused(self, groups: list[_Group]) -> dict[str, list[str]]:
        """Note the variables that neither a step uses nor select another step's instance; return them."""
        variables = {group.id: group.variables for group in groups}
        unused_by_group: dict[str, list[str]] = {}
        for group in groups:
            matched_variables = set().union(*(variables.get(need, set()) for need in group.needs))
            unused_by_group[group.id] = sorted(group.variables - group.used - matched_variables)
            for name in unused_by_group[group.id]:
                message = f"the variable '{name}' is never used; write ${name} where it belongs"
                self.refuse(message, group.where)
        return unused_by_group

    def _refuse_kinds(self, name: str, node: Node, kinds: list[str], where: str) -> None:
        components = self.plugins.of("step")
        known_kinds = [kind for kind in kinds if kind.rpartition(":")[2] in components]
        if len(kinds) > 1 and len(known_kinds) == 1:
            for other in (kind for kind in kinds if kind not in known_kinds):
                hint = suggest(other, ["foreach"])
                hint = hint or f"; is it an option of '{known_kinds[0]}'? Indent it"
                line = node.line(other) if isinstance(node, Fields) else where
                self.refuse(f"step '{name}' has '{other}' beside its kind{hint}", line)
        elif len(kinds) > 1:
            listed = ", ".join(kinds)
            self.refuse(f"step '{name}' is of one kind, not {listed}; make a step of each", where)
        else:
            listed = ", ".join(sorted(components)) or "none is installed"
            self.refuse(f"step '{name}' needs `kind: {{options}}`; kinds: {listed}", where)

    # ── steps as they are built ─────────────────────────────────────────────────────────────────

    def _build_instances(self, group: _Group) -> None:
        """Build every instance, and register each instance, even a faulty one, for later steps."""
        produces: list[Instance] = []
        for row, options in group.options:
            builder = Builder(HANDLERS, self.plugins, self.folder, self.instances, row.values)
            node = Fields({group.kind: options}, group.where, {group.kind: group.kind_where})
            step_path = OptionPath(f"step '{group.id}'")
            built = build_component(builder, (Step,), node, step_path)
            self.problems += builder.problems
            if built is None or built[1] is BROKEN:
                produced = built[0].type.produces if built else ""
                produces.append(Instance(group.id + row.suffix, row.values, produced))
                self.unsound.append(UnsoundStep(produces[-1].id, tuple(builder.references)))
                continue
            component, step = built
            whole_step = RecipeStep(
                group.id + row.suffix,
                group.id,
                component.full_name,
                step,
                row.values,
                group.where,
                builder.lines,
            )
            parts, gathering = self._expand_step(whole_step)
            self.steps += [*parts, *gathering]
            for part in gathering or parts:
                produces.append(Instance(part.id, part.variables, part.step.produces))
        self.instances[group.id] = produces

    def _expand_step(self, whole: RecipeStep) -> tuple[list[RecipeStep], list[RecipeStep]]:
        """Return a step's independent parts, usually only itself, and the steps that gather their results."""
        parts = whole.step.expand()
        if set(parts) == {""}:
            return [replace(whole, step=parts[""])], []
        steps = {
            name: replace(whole, id=f"{whole.id}.{name}", step=part, whole=whole.step)
            for name, part in parts.items()
        }
        if type(whole.step).gather is Step.gather:
            return [*steps.values()], []
        # A part that another step of the recipe also has is run only once, for both steps.
        equal_steps = {name: self._find_equal_step(part) or part for name, part in steps.items()}
        new_steps = [part for name, part in steps.items() if equal_steps[name] is part]
        part_uses = {
            name: StepRef(f"${part.id}", self.folder) for name, part in equal_steps.items()
        }
        last = whole.step.gather(part_uses)
        return new_steps, [replace(whole, step=last)] if last is not None else []

    def _find_equal_step(self, part: RecipeStep) -> RecipeStep | None:
        """Return an earlier step that does exactly the same work as `part`; None if there is none."""
        same_kind_steps = (
            step for step in self.steps if step.kind == part.kind and step.id != part.id
        )
        return next((step for step in same_kind_steps if step.step == part.step), None)

    def _refuse_twins(self, unused_by_group: Mapping[str, Sequence[str]]) -> None:
        """Note steps that do the same; a variable that is not used was noted already."""
        steps_by_content: dict[tuple[str, str], list[RecipeStep]] = {}
        for step in self.steps:
            if unused_by_group[step.group]:
                continue
            equal_steps = steps_by_content.setdefault((step.kind, repr(step.step)), [])
            for other in equal_steps:
                if step.step == other.step:
                    message = f"'{other.id}' and '{step.id}' are the same run"
                    has_seed = hasattr(step.step, "seed")
                    hint = "vary `seed`" if has_seed else "leave one out"
                    self.refuse(f"{message}; {hint}", step.where)
                    break
            equal_steps.append(step)


def _describe_ring(ring: list[str]) -> str:
    if len(ring) == 2:
        return f"step '{ring[0]}' needs its own output"
    return f"the steps {' -> '.join(ring)} need one another"
