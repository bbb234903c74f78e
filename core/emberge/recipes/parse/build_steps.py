"""The steps of a recipe, built group by group in the order of need; problems name their `file:line`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from emberge.contracts import Step, StepRef
from emberge.errors import Problem, RecipeError, suggest
from emberge.options import BROKEN, Builder, OptionPath, StepInstance, build_component
from emberge.plugins import Plugins
from emberge.recipes.parse.foreach import NAME, Combination, Substitution, add_ids, read_foreach
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.yaml_nodes import (
    Fields,
    Node,
    Scalar,
    StepUse,
    describe_node,
    to_plain,
    walk_leaves,
)

_KEYS = ("seed", "plugins", "steps")


def sort_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return each problem once, those of `--set` first, then by line."""

    def key(problem: Problem) -> tuple[bool, int]:
        line = problem.where.rpartition(":")[2]
        return (line.isdecimal(), int(line) if line.isdecimal() else 0)

    return tuple(sorted(dict.fromkeys(problems), key=key))


@dataclass
class _Group:
    """A step as written in the recipe, and its instances after variables were substituted."""

    id: str
    where: str
    kind: str
    kind_where: str
    options: list[tuple[Combination, Node]]
    variables: set[str]
    unused: set[str]
    """The variables that no option uses."""
    needs: set[str]
    """The ids of the groups that this group uses."""

    def name_by_labels(self) -> None:
        """Name the instances by their labels: unused variables with a text of its own in each instance."""
        rows = [row.nodes for row, _ in self.options]
        labels = [name for name in rows[0] if name in self.unused and _are_labels(rows, name)]
        if labels and self.unused < self.variables:
            named = add_ids([{name: row[name] for name in labels} for row in rows])
            self.options = [
                (replace(row, suffix=short.suffix), options)
                for (row, options), short in zip(self.options, named, strict=True)
            ]
            self.unused -= {*labels}


@dataclass
class RecipeReader:
    """The reader of one recipe: it collects the steps, their instances by group, and every problem."""

    plugins: Plugins
    folder: Path
    """The folder to which paths in the recipe are relative."""
    problems: list[Problem]
    """The problems found so far."""
    instances: dict[str, list[StepInstance]] = field(default_factory=dict)
    steps: list[RecipeStep] = field(default_factory=list)

    def refuse(self, message: str, where: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(message, where))

    def read(self, root: Fields) -> Recipe:
        """Build the recipe of a mapping of nodes.

        Raises:
            RecipeError: if there are problems; has all of them, sorted by line.
        """
        for key in root.entries:
            if key not in _KEYS and not key.startswith("x-"):
                hint = suggest(key, _KEYS)
                hint = hint or f"; it has {', '.join(_KEYS)} and x-… of your own"
                self.refuse(f"a recipe has no '{key}'{hint}", root.locate(key))
        seed, node = 0, root.entries.get("seed")
        if isinstance(node, Scalar) and type(node.value) is int and 0 <= node.value < 2**63:
            seed = node.value
        elif node is not None:
            message = f"the seed needs a whole number from 0, not {describe_node(node)}"
            self.refuse(message, node.where)
        steps = root.entries.get("steps")
        if isinstance(steps, Fields) and steps.entries:
            self._read_steps(steps)
        else:
            self.refuse("a recipe needs `steps: {id: {kind: options}}`", root.locate("steps"))
        if self.problems:
            raise RecipeError(sort_problems(self.problems))
        return Recipe(seed, tuple(self.steps))

    def _read_steps(self, written: Fields) -> None:
        """Build the sound steps, each after those that it needs."""
        groups = self._read_groups(written)
        self._refuse_unused(groups)
        for group in self._sort_groups(groups):
            self._build_instances(group)
        self._refuse_equal_steps({group.id for group in groups if group.unused})

    def _read_groups(self, written: Fields) -> list[_Group]:
        name_by_folded: dict[str, str] = {}
        groups: list[_Group] = []
        for name, node in written.entries.items():
            where = written.locate(name)
            if not re.fullmatch(NAME, name):
                self.refuse(f"a step's id is letters, digits, _ and -, not '{name}'", where)
            equal_name = name_by_folded.setdefault(name.casefold(), name)
            if equal_name != name:
                self.refuse(f"'{equal_name}' and '{name}' would be one folder on some disks", where)
            group = self._read_group(name, node, where, list(written.entries))
            if group is not None and group.options:
                groups.append(group)
            else:  # steps that use this one are built as if it were sound
                self.instances[name] = [StepInstance(name, {}, "")]
        return groups

    def _read_group(self, name: str, node: Node, where: str, steps: list[str]) -> _Group | None:
        kinds = [k for k in node.entries if k != "foreach"] if isinstance(node, Fields) else []
        if len(kinds) != 1 or not isinstance(node, Fields):
            self._refuse_kinds(name, node, kinds, where)
            return None
        (kind,) = kinds
        before = len(self.problems)
        rows = [Combination()]
        if "foreach" in node.entries:
            rows = read_foreach(node.entries["foreach"], self.problems)
        variables = set(rows[0].nodes) if rows else set()
        for variable in variables & set(steps):
            self.refuse(f"'{variable}' is a step; name the variable differently", where)
        literal_substitution = Substitution({}, steps, self.problems)
        options: list[tuple[Combination, Node]] = []
        used: set[str] = set()
        for row in rows:
            nodes = {variable: literal_substitution(value) for variable, value in row.nodes.items()}
            substitution = Substitution(nodes, steps, self.problems)
            options.append((replace(row, nodes=nodes), substitution(node.entries[kind])))
            used |= substitution.used
        # A misspelt variable is not also reported as unused.
        unused = variables - used if len(self.problems) == before else set()
        leaves = (leaf for _, filled in options for leaf in walk_leaves(filled))
        needs = {leaf.group for leaf in leaves if isinstance(leaf, StepUse) and leaf.group}
        return _Group(name, where, kind, node.locate(kind), options, variables, unused, needs)

    def _refuse_unused(self, groups: list[_Group]) -> None:
        """Note a problem for each variable that no option uses, and that selects and names no instance."""
        variables = {group.id: group.variables for group in groups}
        for group in groups:
            for need in group.needs:
                group.unused -= variables.get(need, set())
            group.name_by_labels()
            for name in sorted(group.unused):
                message = f"the variable '{name}' is never used; write ${name} where it belongs"
                self.refuse(message, group.where)

    def _refuse_kinds(self, name: str, node: Node, kinds: list[str], where: str) -> None:
        components = self.plugins.of("step")
        known_kinds = [kind for kind in kinds if kind.rpartition(":")[2] in components]
        if not kinds:
            listed = ", ".join(sorted(components)) or "none is installed"
            self.refuse(f"step '{name}' needs `kind: {{options}}`; kinds: {listed}", where)
        elif len(known_kinds) != 1 or not isinstance(node, Fields):
            listed = ", ".join(kinds)
            self.refuse(f"step '{name}' is of one kind, not {listed}; make a step of each", where)
        else:
            for other in (kind for kind in kinds if kind not in known_kinds):
                hint = suggest(other, ["foreach"])
                hint = hint or f"; is it an option of '{known_kinds[0]}'? Indent it"
                self.refuse(
                    f"step '{name}' has '{other}' beside its kind{hint}", node.locate(other)
                )

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
                for needed in [other for other in groups if other.id in group.needs]:
                    add(needed, [*path, group.id])
                ordered[group.id] = group

        for group in groups:
            add(group, [])
        return list(ordered.values())

    def _build_instances(self, group: _Group) -> None:
        """Build every instance of a group; later steps may use each, even a faulty one."""
        instances: list[StepInstance] = []
        for row, options in group.options:
            id_ = group.id + row.suffix
            variables = {name: to_plain(value) for name, value in row.nodes.items()}
            builder = Builder(self.plugins, self.folder, self.instances, variables)
            node = Fields({group.kind: options}, group.where, {group.kind: group.kind_where})
            built = build_component(builder, (Step,), node, OptionPath(f"step '{group.id}'"))
            self.problems += builder.problems
            if built is None or BROKEN in built[1]:
                produces = built[0].type.produces if built else ""
                instances.append(StepInstance(id_, variables, produces))
                continue
            component, (step,) = built
            kind = component.full_name
            whole = RecipeStep(id_, group.id, kind, step, variables, group.where, builder.lines)
            parts, gathering = self._expand_step(whole)
            self.steps += [*parts, *gathering]
            for part in gathering or parts:
                instances.append(StepInstance(part.id, part.variables, part.step.produces))
        self.instances[group.id] = instances

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

    def _find_equal_step(self, step: RecipeStep) -> RecipeStep | None:
        """Return an earlier step that does exactly the same work as `step`; None if there is none."""
        others = (other for other in self.steps if other.kind == step.kind and other.id != step.id)
        return next((other for other in others if other.step == step.step), None)

    def _refuse_equal_steps(self, left_out: set[str]) -> None:
        """Note a problem for each step that equals an earlier one, except in the groups of `left_out`."""
        steps_by_content: dict[tuple[str, str], list[RecipeStep]] = {}
        for step in self.steps:
            if step.group in left_out:
                continue
            equal_steps = steps_by_content.setdefault((step.kind, repr(step.step)), [])
            twin = next((other for other in equal_steps if other.step == step.step), None)
            equal_steps.append(step)
            if twin is not None:
                hint = "vary `seed`" if hasattr(step.step, "seed") else "leave one out"
                message = f"'{twin.id}' and '{step.id}' are the same run; {hint}"
                self.refuse(message, step.where)


def _are_labels(rows: Sequence[Mapping[str, Node]], name: str) -> bool:
    """Return whether the variable has a text of its own in each row."""
    nodes = [row[name] for row in rows]
    texts = {node.value for node in nodes if isinstance(node, Scalar)}
    return len(texts) == len(rows) and all(isinstance(text, str) for text in texts)


def _describe_ring(ring: list[str]) -> str:
    if len(ring) == 2:
        return f"step '{ring[0]}' needs its own output"
    return f"the steps {' -> '.join(ring)} need one another"
