"""Comparison of models by files other than weights: what cannot be merged, and which facts a result gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError, Problem
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import (
    CARD_REASON,
    HEAD_REASON,
    LICENCE_REASON,
    RECORD_REASON,
    REPOSITORY_REASON,
    STATE_REASON,
    TOKENIZER_FILES,
    WEIGHTS_REASON,
)
from emberge.model_folder.model_config import find_trunk_config, read_rope_options
from emberge.model_folder.model_files import list_files_not_copied
from emberge.model_folder.st_layout import MODULE_SIZES, read_module_config
from emberge.model_folder.stated_facts import Fact, FactId, read_facts, write_fact
from emberge.wording import join_some

_EQUAL_KEYS = (
    "model_type",
    # Names that classes have for the number of heads, and for the activation.
    *("num_attention_heads", "num_heads", "n_heads", "n_head", "num_key_value_heads", "head_dim"),
    *("hidden_act", "hidden_activation", "activation", "activation_function", "feed_forward_proj"),
    "position_embedding_type",
)
_EQUAL_TRUNK_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", *_EQUAL_KEYS[1:])
# Reasons for leaving files out that need no mention.
_UNNAMED_REASONS = {REPOSITORY_REASON, CARD_REASON, STATE_REASON, RECORD_REASON}
_SHOWN_CHARACTERS = 60
_NO_ADAPTER_HAS = "an adapter has none of it, and 'base' names the model that it lies on"


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A pair of models, compared by the files in their folders other than weights.

    Only keys that both configs have are compared, as a plain transformers folder may have fewer of them. Each
    difference is a text: `key is a in one and b in the other`.
    """

    first: Checkpoint
    second: Checkpoint

    def find_differences(self, *, modules: bool = True) -> Iterator[str]:
        """Yield differences that make the tensors of the two models incomparable.

        A base need not have the `modules` of its descendants.
        """
        for key in _EQUAL_KEYS:
            configs = self.first.config, self.second.config
            differences = list(_compare_key(key, *configs, "config.json's "))
            yield from differences
            if differences and key == "model_type":
                return  # all else follows from it
        if not (modules and self.first.modules and self.second.modules):
            return
        kinds = _name_modules(self.first), _name_modules(self.second)
        if kinds[0] != kinds[1]:
            yield f"the modules are {kinds[0]} in one and {kinds[1]} in the other (modules.json)"
            return
        for first, second in zip(self.first.all_modules, self.second.all_modules, strict=True):
            configs = (
                read_module_config(self.first.folder, first),
                read_module_config(self.second.folder, second),
            )
            file = f" ({first.path}/config.json)"
            for key in MODULE_SIZES if first.path else ():
                yield from _compare_key(key, *configs, f"{first.kind}'s ", file)

    def find_trunk_differences(self, *, positions: bool = True) -> Iterator[str]:
        """Yield differences that make the two text trunks incomparable: family, sizes, RoPE bases.

        A RoPE base that only one config has is a difference too, as the classes' defaults differ. Without
        `positions`, RoPE bases are not compared.
        """
        configs = find_trunk_config(self.first.config), find_trunk_config(self.second.config)
        families = [str(config.get("model_type", "")).partition("_")[0] for config in configs]
        if families[0] != families[1]:
            yield f"the text trunk is {families[0]} in one and {families[1]} in the other"
            return
        for key in _EQUAL_TRUNK_KEYS:
            yield from _compare_key(key, *configs, "the text config's ")
        ropes = [read_rope_options(config) for config in configs] if positions else []
        for key in sorted({key for rope in ropes for key in rope}):
            a, b = (shorten_value(rope[key]) if key in rope else "missing" for rope in ropes)
            if a != b:
                yield f"the text config's {key} is {a} in one and {b} in the other"

    def find_stated_differences(self) -> Iterator[str]:
        """Yield differences in pooling, lengths, similarity and attention, not in prompts and tokenizer."""
        first, second = read_facts(self.first), read_facts(self.second)
        for key in dict.fromkeys((*first, *second)):
            facts = first.get(key), second.get(key)
            values = [None if fact is None or fact.is_trivial else fact.value for fact in facts]
            is_file = any(fact and fact.file for fact in facts)
            is_compared = key[0] not in ("prompts", "model_type") and not is_file
            if is_compared and values[0] != values[1]:
                yield describe_difference(key[0], values[0], values[1])

    @property
    def same_tokenizer(self) -> bool:
        """True if the tokenizers' files are equal byte for byte."""
        folders = self.first.tokenizer_folder, self.second.tokenizer_folder
        for a, b in ((folders[0] / name, folders[1] / name) for name in TOKENIZER_FILES):
            if a.is_file() != b.is_file() or (a.is_file() and a.read_bytes() != b.read_bytes()):
                return False
        return True


def _compare_key(
    key: str, first: Mapping[str, Any], second: Mapping[str, Any], owner: str = "", file: str = ""
) -> Iterator[str]:
    a, b = first.get(key), second.get(key)
    if a is not None and b is not None and a != b:
        yield describe_difference(f"{owner}{key}", a, b, file)


@dataclass
class JoinedFacts:
    """Facts of a result from those of its members: problems, warnings, and what the template lacks.

    Members that state a fact must agree, and a fact that only some state is written into the result. Where
    members differ, the template decides if the user has chosen it (`is_chosen`); otherwise it is a problem.
    Of the members in `trunk_names`, whose text trunk alone is used, only the direction of attention counts.
    An adapter (`is_adapter`) states no facts.

    `left_files` maps each member to its files that the result does not get, and `heads` are the files of
    heads that the result gets unopened.
    """

    template_name: str = ""
    is_chosen: bool = False
    is_adapter: bool = False
    trunk_names: Sequence[str] = ()
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_files: dict[str, list[str]] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    members: dict[str, Checkpoint] = field(default_factory=dict)
    facts_by_member: dict[str, Mapping[FactId, Fact]] = field(default_factory=dict)
    # Facts to write into the result, each with its member; files to remove from the result.
    _written: list[tuple[str, Fact]] = field(default_factory=list)
    _removed: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        template: Checkpoint,
        members: Mapping[str, Checkpoint],
        *,
        chosen: bool,
        trunks: Sequence[str] = (),
        adapter: bool = False,
        towers: bool = False,
    ) -> JoinedFacts:
        """Return the facts of a result whose files come from `template`, joined from those of all members.

        With `towers` the other members give towers with their processors, so attention is not compared, nor
        are files except heads and licences.
        """
        name = next(
            (n for n, m in members.items() if m.folder == template.folder), template.folder.name
        )
        others = {n: m for n, m in members.items() if m.folder != template.folder}
        joined = cls(
            template_name=name,
            is_chosen=chosen,
            is_adapter=adapter,
            trunk_names=trunks,
            members={name: template, **others},
        )
        for name, member in joined.members.items():
            try:
                facts = read_facts(member)
            except CheckpointError as error:
                facts = {}
                if member is not template:  # whose files are checked as a whole
                    joined.problems.append(Problem(str(error)))
            is_trunk = name in trunks and member is not template
            # Modules that differ are no pairs, and are a difference by themselves.
            has_same_modules = _name_modules(member) == _name_modules(template)
            joined.facts_by_member[name] = {
                key: fact
                for key, fact in facts.items()
                if (fact.is_direction or not is_trunk)
                and (has_same_modules or fact.store not in ("modules", "module"))
                and not (towers and _is_left_to_towers(fact))
            }
        joined._join_facts()
        for name in () if adapter else [n for n in members if n not in trunks]:
            joined._list_left_files(name, members[name])
        joined.warnings += joined._describe_written()
        return joined

    def write(self, out: Path, template: Checkpoint) -> None:
        """Write the facts that the template lacks into `out`, a copy of the template's folder."""
        for name in self._removed:
            (out / name).unlink(missing_ok=True)
        for member, fact in self._written:
            write_fact(fact, self.members[member], out, template)

    def _join_facts(self) -> None:
        """Apply the rule to every fact that any member states, and to the modules."""
        for key in dict.fromkeys(key for facts in self.facts_by_member.values() for key in facts):
            holders = {n: facts[key] for n, facts in self.facts_by_member.items() if key in facts}
            fact = next(iter(holders.values()))
            # If members differ in a file or in a chat template, it is no problem.
            if fact.file or fact.store == "tokenizer":
                self._join_file(key[0], holders)
            else:
                self._join_fact(holders)
        template_modules = _name_modules(self.members[self.template_name])
        for name, member in self.members.items():
            if name not in self.trunk_names and _name_modules(member) != template_modules:
                self._join_modules(name, _name_modules(member), template_modules)

    def _list_left_files(self, name: str, member: Checkpoint) -> None:
        """Add a member's files that no result gets; cards and training records excepted."""
        files_by_reason = list_files_not_copied(member)
        named_reasons = [reason for reason in files_by_reason if reason not in _UNNAMED_REASONS]
        left_files = [file for reason in named_reasons for file in files_by_reason[reason]]
        if left_files:
            self.left_files[name] = [*dict.fromkeys([*self.left_files.get(name, ()), *left_files])]
        if heads := files_by_reason.get(WEIGHTS_REASON):
            self.warnings.append(
                f"{join_some(heads)} of '{name}' is left out: beside the weights that its classes read"
            )

    def _join_fact(self, holders: Mapping[str, Fact]) -> None:
        """Compare the values of one fact, and note it if the template lacks it."""
        own_fact = holders.get(self.template_name)
        if own_fact is None and self.is_chosen:
            for name, fact in holders.items():
                if fact.store and not fact.is_trivial:
                    self._choose(
                        f"'{name}' states {_describe(fact)}, and '{self.template_name}' none"
                    )
            return
        first = next(iter(holders)) if own_fact is None else self.template_name
        kept = holders[first]
        for name, fact in holders.items():
            if fact.value != kept.value:
                text = describe_difference(fact.label, kept.value, fact.value, kept.source)
                self._choose(f"'{first}' and '{name}': {text}")
        # The template's own direction of attention is noted too, so that a warning says who does not state
        # it: releases differ in the direction of a model that states none.
        is_unsure = own_fact is not None and own_fact.is_direction and self._find_silent(own_fact)
        if not kept.is_default and (is_unsure or (own_fact is None and kept.store)):
            self._written.append((first, kept))

    def _choose(self, text: str) -> None:
        """Add a warning if the user has chosen whose facts to follow, else a problem that asks for it."""
        option = "base" if self.is_adapter else "template"
        if self.is_chosen:
            self.warnings.append(f"{text}; the {option} is followed")
        else:
            self.problems.append(Problem(f"{text}; choose one with '{option}'"))

    def _find_silent(self, fact: Fact) -> list[str]:
        """Return the whole members that do not state a fact."""
        key = fact.label, fact.module_number
        members = self.facts_by_member.items()
        return [n for n, facts in members if key not in facts and n not in self.trunk_names]

    def _join_file(self, name: str, holders: Mapping[str, Fact]) -> None:
        """Keep a file that is equal in all members that have it; leave a head out if it differs."""
        own_fact = holders.get(self.template_name)
        is_equal = len({fact.value for fact in holders.values()}) == 1
        is_head = all(fact.file_reason == HEAD_REASON for fact in holders.values())
        losers = [*holders]
        if own_fact is None and self.is_chosen:
            self._choose(f"{_quote(losers)} has {name}, and '{self.template_name}' none")
        elif is_equal:
            losers = []
            holder, fact = next(iter(holders.items()))
            if own_fact is None or (is_head and self._find_silent(fact)):
                self._written.append((holder, fact))
        else:
            kept = ""
            if own_fact is not None and (self.is_chosen or not is_head):
                losers.remove(self.template_name)
                kept = f"; that of '{self.template_name}' is kept"
            elif own_fact is not None:
                self._removed.append(own_fact.file)
            self.warnings.append(f"{name} differs and is left out: of {_quote(losers)}{kept}")
        if is_head and len(losers) < len(holders):
            self.heads.append(name)
        for loser in losers:
            self.left_files.setdefault(loser, []).append(name)

    def _join_modules(self, name: str, modules: str, template_modules: str) -> None:
        """Report a member with other modules than the template, which cannot get them."""
        text = f"'{name}' has the modules {modules}, and '{self.template_name}' {template_modules or 'none'}"
        if modules and not template_modules and self.is_adapter and not self.is_chosen:
            self.warnings.append(f"{text}; {_NO_ADAPTER_HAS}")
        elif modules and (self.is_chosen or not template_modules):
            self._choose(text)

    def _describe_written(self) -> Iterator[str]:
        """Yield one line for each member whose facts only some members state."""
        shown = [(n, f) for n, f in self._written if not f.is_trivial or f.is_direction]
        for name in dict.fromkeys(name for name, _ in shown):
            facts = [fact for member, fact in shown if member == name]
            silent = dict.fromkeys(other for fact in facts for other in self._find_silent(fact))
            yield (
                f"'{name}' states {', '.join(map(_describe, facts))}, and {_quote(silent)} "
                f"{'does' if len(silent) == 1 else 'do'} not; "
                f"{_NO_ADAPTER_HAS if self.is_adapter else 'the result has it'}"
            )


def _name_modules(checkpoint: Checkpoint) -> str:
    return " + ".join(module.kind for module in checkpoint.all_modules)


def _is_left_to_towers(fact: Fact) -> bool:
    """Return whether members that give towers may differ in a fact: attention, files of processors."""
    is_other_file = fact.file != "" and fact.file_reason not in (HEAD_REASON, LICENCE_REASON)
    return fact.is_direction or is_other_file or fact.store == "tokenizer"


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _describe(fact: Fact) -> str:
    return fact.label if fact.file else f"{fact.label} {shorten_value(fact.value)}"


def describe_difference(label: str, first: Any, second: Any, file: str = "") -> str:
    """Return a text on two values: `label is a in one and b in the other`, and the file that has them."""
    return (
        f"{label} is {shorten_value(first)} in one and {shorten_value(second)} in the other{file}"
    )


def shorten_value(value: Any) -> str:
    """Return a value as Python writes it, cut to a length that a message can have."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
