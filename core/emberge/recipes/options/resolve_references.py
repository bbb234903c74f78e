"""References: to the one matching instance of a step, or to something outside the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emberge.recipes.options import field_types as forms
from emberge.recipes.options.builder import BROKEN, Builder, Handler, Instance, OptionPath
from emberge.recipes.options.phrases import article, describe_form
from emberge.yaml_nodes import Node, Scalar, StepUse


class SeveralSteps(Exception):  # noqa: N818 - no error: the list around it repeats the entry
    """A use of several steps where one belongs."""

    def __init__(self, group: str, candidates: Sequence[Instance]) -> None:
        self.group = group
        self.candidates = candidates


def _reference(build: Builder, form: forms.Ref, node: Node, at: OptionPath) -> Any:
    if isinstance(node, StepUse):
        return _step_reference(build, form, node, at)
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.strip():
        return build.misfit(form, node, at)
    if set(form.type.accepts) >= {"scores", "report"}:
        known = ", ".join(f"${group}" for group in build.targets)
        hint = f"; earlier steps: {known}" if known else ""
        return build.refuse(
            f"{at.label} needs a step, not the text {node.text!r}{hint}", node.where
        )
    # A dollar that was written twice is no step's.
    text = f"./{node.value}" if node.value.startswith("$") else node.value
    return form.type(text, build.folder)


def _step_reference(build: Builder, form: forms.Ref, node: StepUse, at: OptionPath) -> Any:
    found = _candidates(build, node.group)
    if not found and not build.targets.get(node.group):
        return BROKEN  # the step is faulty itself, which has been noted
    if not found:
        names = ", ".join(f"{name}={value}" for name, value in build.variables.items())
        return build.refuse(f"no step of ${node.group} has {names}", node.where)
    if len(found) > 1:
        if at.entry:
            raise SeveralSteps(node.group, found)
        few = ", ".join(one.id for one in found[:3]) + (", …" if len(found) > 3 else "")
        return build.refuse(
            f"{at.label} takes one, and ${node.group} is {len(found)} steps ({few})", node.where
        )
    (one,) = found
    if not _accepted(form, node, one):
        message = (
            f"{node.text} makes {article(one.produces)}, and {at.label} takes {describe_form(form)}"
        )
        return build.refuse(message, node.where)
    return form.type(f"${one.id}{node.part}{node.rest}", build.folder)


def _accepted(form: forms.Ref, node: StepUse, one: Instance) -> bool:
    """Return whether the form takes what the step produces; only steps that make models have checkpoints."""
    if node.part and one.produces not in ("model", ""):
        return False
    return one.produces in form.type.accepts or not one.produces


def _candidates(build: Builder, group: str) -> list[Instance]:
    """Return the group's instances that agree with this step's variables and with those chosen so far."""
    if group in build.chosen:
        return [build.chosen[group]]
    known = dict(build.variables)
    for one in build.chosen.values():
        known.update(one.variables)
    return [one for one in build.targets.get(group, ()) if _agree(one.variables, known)]


def _agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(
        a[name] == b[name] and isinstance(a[name], bool) == isinstance(b[name], bool)
        for name in a.keys() & b.keys()
    )


HANDLERS: Mapping[type, Handler] = {forms.Ref: _reference}
