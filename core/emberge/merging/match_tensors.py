"""Matching of the models' tensors: the sources of each output tensor, which is merged or copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.errors import Problem
from emberge.merging.merge_plan import TensorPlan
from emberge.merging.plan_checks import find_count_problems
from emberge.merging.request import MergeRequest
from emberge.model_folder import Checkpoint
from emberge.tensor_files import DerivedTensor, TensorSpec
from emberge.tensor_names import HEAD, TensorNames, find_head, is_buffer, is_unused_by_encoders
from emberge.wording import join_some

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.tensor_files import RowReader


@dataclass
class MatchedTensors:
    """The tensors of the output, the names of those that are dropped, problems and warnings."""

    tensors: list[TensorPlan] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class TensorMatcher:
    """Matcher of the tensors of one merge by the names that the template has for them.

    `names_by_model` contains the models that exist; other models are assumed to have the same tensors.
    """

    def __init__(
        self,
        request: MergeRequest,
        template: Checkpoint,
        template_names: TensorNames,
        names_by_model: Mapping[str, TensorNames],
    ) -> None:
        self.request, self.template, self.template_names = request, template, template_names
        self.names_by_model = {
            m.name: names_by_model[m.name] for m in request.inputs if m.name in names_by_model
        }
        base = request.base
        self.base = names_by_model.get(base.name) if base is not None else None
        self.matched = MatchedTensors()
        self.models_without_head: dict[str, set[str]] = {}  # by head of the template
        self.models_with_head: dict[str, set[str]] = {}  # by head that the template lacks
        self.averaged_heads: dict[str, None] = {}  # heads that the base lacks
        # Tensors by head or, outside heads, by name.
        self.lacking_in_base: dict[str, list[str]] = {}
        self.names_by_problem: dict[str, list[str]] = {}  # tensors by message

    def match(self) -> MatchedTensors:
        """Return every tensor of the output, with problems and warnings."""
        for name in self._list_names():
            tensor = self._plan_tensor(name)
            if tensor is not None:
                self.matched.tensors.append(tensor)
        if self.models_with_head or self.models_without_head or self.averaged_heads:
            self.matched.warnings += self._warn_of_heads()
        if self.lacking_in_base:
            hint = "name another base"
            if self.request.missing is not None:
                rules = ", ".join(
                    f"{{filter: {p}, strategy: linear}}" for p in self.lacking_in_base
                )
                hint = f"merge it by a rule that needs no base (`rules: [{rules}]`)"
            lacking_names = [name for names in self.lacking_in_base.values() for name in names]
            self.names_by_problem[f"the base lacks it; {hint}"] = lacking_names
        self.matched.problems += (
            Problem(message, join_some(names, 1))
            for message, names in self.names_by_problem.items()
        )
        return self.matched

    def _list_names(self) -> Iterator[str]:
        """Yield the canonical names of the output's tensors; note those that are dropped."""
        all_names = dict.fromkeys(self.template_names.specs)
        for model in self.names_by_model.values():
            all_names.update(dict.fromkeys(model.specs))
        for name in all_names:
            in_template = name in self.template_names.specs
            if self.template_names.is_redundant(name) or (is_buffer(name) and not in_template):
                self.matched.dropped.append(name)
                if owners := self._find_untied(name):
                    self.models_with_head.setdefault(find_head(name), set()).update(owners)
            elif not in_template and (owners := self._find_head_owners(name)):
                self.matched.dropped.append(name)
                self.models_with_head.setdefault(find_head(name), set()).update(owners)
            else:
                yield name
        if self.base is not None:
            self.matched.dropped += [n for n in self.base.specs if n not in all_names]

    def _warn_of_heads(self) -> Iterator[str]:
        """Yield a line for each set of heads that the same models have, lack or have alone."""
        template = self._find_template_name()
        for models, heads in _group_heads(self.models_with_head):
            yield (
                f"{heads} of {models}: left out, as '{template}' has none of its own; "
                "name a model that has it as 'template'"
            )
        for models, heads in _group_heads(self.models_without_head):
            yield f"{models}: without {heads} of '{template}', which comes from the models that have it"
        if self.averaged_heads:
            yield (
                f"the base lacks {_quote_names(self.averaged_heads)}: the result has the models' mean there, "
                "and the strategy merges all else"
            )

    def _find_untied(self, name: str) -> set[str]:
        """Return the models that store numbers of their own in a copy that the template ties."""
        return {model for model, names in self.names_by_model.items() if names.stores_untied(name)}

    def _find_head_owners(self, name: str) -> set[str]:
        """Return the models that have the tensor in a head; no models if any has it outside a head."""
        owners = {model for model, names in self.names_by_model.items() if name in names.specs}
        return (
            owners if all(name in self.names_by_model[model].heads for model in owners) else set()
        )

    def _plan_tensor(self, name: str) -> TensorPlan | None:
        """Return the plan of a tensor; None if it has a problem, which is noted."""
        sources = tuple(
            self._find_source(self.names_by_model.get(m.name), name) for m in self.request.inputs
        )
        from_template = self.template_names.specs.get(name)
        if is_buffer(name) and from_template:
            return TensorPlan(
                name, self._build_copied_spec(from_template), "copy", (), origin=from_template
            )
        pattern = from_template or self._name_like_template(
            name, next(s for s in sources if s is not None)
        )
        # No stage sees a block without numbers, which has no mean, norm or quantile.
        if not pattern.mergeable or not pattern.elements:
            return self._plan_copy(name, pattern, sources)
        base = self._find_source(self.base, name)
        dtype = self.request.out_dtype or pattern.dtype
        result = TensorSpec(self.template_names.name_in_result(pattern), pattern.shape, dtype)
        tensor = TensorPlan(name, result, "merge", sources, base)
        changed = self._plan_optional(tensor) if from_template is not None else None
        changed = changed or self._apply_policy(tensor, from_template is not None)
        if changed is not None and changed.action == "merge":
            changed = self._plan_present(changed)
        if changed is not None and base is None and self.base is not None:
            changed = self._plan_without_base(changed)
        if changed is None or changed.action == "copy":
            return changed
        if any(spec and spec.shape != result.shape for spec in (*changed.sources, base)):
            self._note_other_shape(changed)
            return None
        return changed

    def _plan_copy(
        self, name: str, pattern: TensorSpec, sources: tuple[TensorSpec | None, ...]
    ) -> TensorPlan | None:
        """Plan the copy of a tensor of integers or booleans, whose bytes must be equal in all models."""
        for model, spec in zip(self.request.inputs, sources, strict=True):
            if spec is not None and (spec.shape, spec.dtype) != (pattern.shape, pattern.dtype):
                self._add_problem(
                    name,
                    f"'{model.name}' holds {spec.dtype} {list(spec.shape)}, the template {pattern.dtype} "
                    f"{list(pattern.shape)}, which cannot be merged; convert the models first",
                )
                return None
        return TensorPlan(name, self._build_copied_spec(pattern), "copy", sources, origin=pattern)

    def _plan_optional(self, tensor: TensorPlan) -> TensorPlan | None:
        """Return a plan for a tensor of the template that models may lack; None if no model lacks it.

        Models may lack heads and modules, and those of which only the text trunk is used, all outside it.
        """
        models = [(m.name, self.names_by_model.get(m.name)) for m in self.request.inputs]
        trunks = {m.name for m in self.request.inputs if m.part == "text"}
        lacking_models = {
            name
            for name, names in models
            if names is not None and self._is_lacking(tensor.name, names, name in trunks)
        }
        sources = tuple(
            None if name in lacking_models else spec
            for (name, _), spec in zip(models, tensor.sources, strict=True)
        )
        present_specs = [spec for spec in sources if spec is not None]
        if not lacking_models or len(present_specs) + len(lacking_models) < len(
            self.names_by_model
        ):
            return None
        self.models_without_head.setdefault(find_head(tensor.name), set()).update(
            lacking_models - trunks
        )
        tensor = replace(tensor, sources=sources)
        if len(present_specs) > 1 or len(self.names_by_model) < len(models):
            return tensor
        from_template = self.template_names.specs[tensor.name]
        origin = present_specs[0] if present_specs else from_template
        if origin.shape != from_template.shape:
            return tensor
        result = TensorSpec(tensor.result.name, origin.shape, origin.dtype)
        return replace(tensor, action="copy", sources=(), origin=origin, result=result)

    def _is_lacking(self, name: str, names: TensorNames, is_trunk: bool) -> bool:
        """Return whether a model is without a tensor of the template that it may lack."""
        template_names = self.template_names
        in_module, in_head = name.startswith(template_names.modules), name in template_names.heads
        if is_trunk:
            may_lack = in_head or in_module or template_names.is_outside_trunk(name)
            return may_lack and name not in names.specs
        if in_module:
            return not names.modules  # a plain transformers folder
        return in_head and not names.shares_head(template_names, name)

    def _apply_policy(self, tensor: TensorPlan, in_template: bool) -> TensorPlan | None:
        """Return the plan, changed by the policy for missing tensors if some models lack the tensor."""
        lacking_names = [
            m.name
            for m, spec in zip(self.request.inputs, tensor.sources, strict=True)
            if spec is None and m.name in self.names_by_model
        ]
        if self.request.missing == "average_present" and any(tensor.sources):
            return tensor
        if lacking_names or not in_template:
            self._add_problem(tensor.name, self._describe_lack(tensor, lacking_names))
            return None
        return tensor

    def _plan_present(self, tensor: TensorPlan) -> TensorPlan | None:
        """Return the plan of a tensor from the models that have it, if its chain takes so few.

        Otherwise the tensor is copied if one model has it; if several have it, the problem is noted.
        """
        sources = zip(self.request.inputs, tensor.sources, strict=True)
        present = [m for m, spec in sources if spec or m.name not in self.names_by_model]
        if len(present) == len(self.request.inputs):
            return tensor
        chain = self.request.chains[self.request.find_chain_number(tensor.result.name)]
        names, groups = [m.name for m in present], [m.group for m in present]
        problem = next(find_count_problems(chain, names, groups), None)
        if problem is None:
            return tensor
        origin = next(spec for spec in tensor.sources if spec is not None)
        if len(present) == 1:
            result = TensorSpec(tensor.result.name, origin.shape, origin.dtype)
            return replace(tensor, action="copy", sources=(), origin=origin, result=result)
        self._add_problem(
            tensor.name,
            f"some models lack it, and {problem}; merge it by a rule",
        )
        return None

    def _describe_lack(self, tensor: TensorPlan, lacking: list[str]) -> str:
        if not lacking:
            return f"the template {self.template.folder.name} lacks it; choose another template"
        quoted_names = ", ".join(f"'{name}'" for name in lacking)
        hint = "merge models of one architecture"
        if self.request.missing == "strict":
            hint += ", or give `missing: average_present`"
        return f"{quoted_names} {'lacks' if len(lacking) == 1 else 'lack'} it; {hint}"

    def _plan_without_base(self, tensor: TensorPlan) -> TensorPlan | None:
        """Return the plan of a tensor that the base lacks; None if the strategy needs it, which is noted.

        A tensor that no text encoder uses needs no base: it is the mean of the models.
        """
        chain = self.request.chains[self.request.find_chain_number(tensor.result.name)]
        if tensor.action == "copy" or not any(link.base_policy == "required" for link in chain):
            return tensor
        present_specs = tuple(spec for spec in tensor.sources if spec is not None)
        same_shape = all(spec.shape == tensor.result.shape for spec in present_specs)
        if same_shape and is_unused_by_encoders(tensor.name):
            self.averaged_heads[find_head(tensor.name)] = None
            result = tensor.result
            mean = _Mean(result.name, result.shape, result.dtype, origins=present_specs)
            return replace(tensor, action="copy", sources=(), origin=mean)
        names = self.template_names
        in_head = tensor.name in names.heads or tensor.name.startswith(names.modules)
        group = find_head(tensor.name) if in_head else tensor.result.name
        self.lacking_in_base.setdefault(group, []).append(tensor.name)
        return None

    def _note_other_shape(self, tensor: TensorPlan) -> None:
        """Note as a problem the first model whose shape differs from the result's."""
        names = [*(model.name for model in self.request.inputs), "the base"]
        specs = zip(names, (*tensor.sources, tensor.base), strict=True)
        name, shape = next(
            (n, s.shape) for n, s in specs if s is not None and s.shape != tensor.result.shape
        )
        self._add_problem(
            tensor.name,
            f"'{name}' has shape {list(shape)}, '{self._find_template_name()}' has "
            f"{list(tensor.result.shape)}; merge models of one architecture",
        )

    def _find_source(self, names: TensorNames | None, name: str) -> TensorSpec | None:
        # Where a model ties its head to the embedding, the embedding is its head.
        return (names.specs.get(name) or names.find_substitute(name)) if names is not None else None

    def _build_copied_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.with_name(self.template_names.name_in_result(spec))

    def _name_like_template(self, name: str, spec: TensorSpec) -> TensorSpec:
        is_plain_name = name == HEAD or any(
            name.startswith(p) for p in self.template.folder_by_prefix if p
        )
        return spec.with_name(name if is_plain_name else self.template_names.prefix + name)

    def _find_template_name(self) -> str:
        for model in self.request.inputs:
            if model.folder is not None and Path(model.folder) == self.template.folder:
                return model.name
        return self.template.folder.name

    def _add_problem(self, name: str, message: str) -> None:
        self.names_by_problem.setdefault(message, []).append(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean(DerivedTensor):
    """The mean of several models' tensors of one shape."""

    origins: tuple[TensorSpec, ...]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        import torch

        row = torch.empty_like(into)
        into.zero_()
        for origin in self.origins:
            reader.read(origin, rows.start * self.row_width, row.view(-1))
            into.add_(row)
        into.div_(len(self.origins))


def _group_heads(models_by_head: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield (models, heads), each quoted: the heads that the same models have or lack."""
    heads_by_models: dict[str, list[str]] = {}
    for head, models in models_by_head.items():
        if models:
            heads_by_models.setdefault(_quote_names(models), []).append(head)
    for quoted_models, heads in heads_by_models.items():
        yield quoted_models, f"the {'head' if len(heads) == 1 else 'heads'} {_quote_names(heads)}"


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
