"""`--set id.train.learning_rate=2e-5`: replace or add one option of a recipe before it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emberge.errors import Problem, suggest
from emberge.yaml_nodes import Fields, Items, Node, Scalar, describe_node, read_yaml


def override(root: Fields, settings: Sequence[str], problems: list[Problem]) -> Fields:
    """Return the recipe with every `path=value` set; values are YAML, and lists go by index from 0."""
    for setting in settings:
        root = _set_option(root, setting, problems)
    return root


def _set_option(root: Fields, setting: str, problems: list[Problem]) -> Fields:
    where = f"--set {setting}"
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        problems.append(Problem("write `--set step.kind.option=value`", where))
        return root
    before = len(problems)
    value = read_yaml(text, lambda _: where, problems, what="the value")
    if len(problems) > before or value is None:
        return root
    if keys == ["seed"]:
        return _replace_entry(root, "seed", value, where)
    return _set_step_option(root, keys, value, problems)


def _set_step_option(root: Fields, keys: list[str], value: Node, problems: list[Problem]) -> Fields:
    where = value.where
    steps = root.entries.get("steps")
    if not isinstance(steps, Fields):
        return root  # the recipe itself has a problem here, which is noted when it is read
    step = steps.entries.get(keys[0])
    if step is None:
        hint = suggest(keys[0], [*steps.entries, "seed"])
        hint = hint or f"; there are {', '.join(steps.entries)}"
        if keys[0].startswith("x-"):
            hint = "; anchors (x-…) are not set: set the options or the foreach of the steps"
        problems.append(Problem(f"there is no step '{keys[0]}'{hint}", where))
        return root
    names = list(step.entries) if isinstance(step, Fields) else []
    if len(keys) < 2 or keys[1] not in [*names, "foreach"]:
        hint = suggest(keys[1], names) if len(keys) > 1 else ""
        kind = next((name for name in names if name != "foreach"), "kind")
        whose = "the options of all its instances" if "foreach" in names else "its options"
        hint = hint or f"; {whose} are set as {keys[0]}.{kind}.…"
        option_path = ".".join(keys[:2])
        problems.append(Problem(f"nothing is called '{option_path}'{hint}", where))
        return root
    changed_step = _put_value(step, keys[1:], value, problems)
    return _replace_entry(root, "steps", _replace_entry(steps, keys[0], changed_step))


def _replace_entry(node: Fields, key: str, value: Node, line: str | None = None) -> Fields:
    lines: Mapping[str, str] = node.lines if line is None else {**node.lines, key: line}
    return Fields({**node.entries, key: value}, node.where, lines)


def _put_value(node: Node | None, keys: list[str], value: Node, problems: list[Problem]) -> Node:
    """Return the node with `value` at the path; the grammar reports unknown options in the path."""
    if not keys:
        return value
    key, *inner_keys = keys
    if isinstance(node, Items):
        return _put_list_item(node, keys, value, problems)
    if isinstance(node, Scalar) and node.value == key and inner_keys:
        node = Fields({key: Fields({}, node.where)}, node.where)  # `name` is `name: {}`
    if node is None or (isinstance(node, Scalar) and node.value is None):
        node = Fields({}, value.where)
    if not isinstance(node, Fields):
        message = f"'{key}' is no part of {describe_node(node)}"
        problems.append(Problem(message, value.where))
        return node
    inner = _put_value(node.entries.get(key), inner_keys, value, problems)
    return _replace_entry(
        node, key, inner, value.where if not inner_keys else node.lines.get(key, value.where)
    )


def _put_list_item(node: Items, keys: list[str], value: Node, problems: list[Problem]) -> Node:
    key, *inner_keys = keys
    if not key.isdecimal() or int(key) >= len(node.items):
        last = len(node.items) - 1
        message = f"'{key}' stands for a list; give an index from 0 to {last}"
        problems.append(Problem(message, value.where))
        return node
    items = list(node.items)
    items[int(key)] = _put_value(items[int(key)], inner_keys, value, problems)
    return Items(tuple(items), node.where)
