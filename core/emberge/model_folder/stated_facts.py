"""The settings that model folders state apart from weights, and the rule that gives them to a result.

A fact is a choice that somebody made for a model: modules and pooling, prompts, lengths, similarity, the
direction of attention, labels, files of heads. `read_facts` is the table of all of them. Members that state
a fact must agree; what only some state is written into the result; where they differ, an explicit template
decides, or a person has to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from emberge.errors import Problem
from emberge.files import write_json
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.classic_names import pooling_modes
from emberge.model_folder.compare_models import (
    MODULE_SIZES,
    describe_difference,
    rope_options,
    shorten_value,
    trunk_config,
    with_trunk_config,
)
from emberge.model_folder.config_fields import declared_defaults
from emberge.model_folder.copies import (
    copied_files,
    copy_file,
    files_not_copied,
    list_left_out,
)
from emberge.model_folder.folder_files import (
    HEAD_FILE,
    TOKENIZER_FILES,
    WEIGHTS,
    read_json,
    read_object_if_any,
    rule_of,
)
from emberge.model_folder.st_layout import (
    ROUTERS,
    ModuleFolder,
    layout_files,
    module_config,
    module_config_path,
    read_entries,
    read_router_config,
    read_settings,
    read_trunk_settings,
    trunk_settings_path,
)
from emberge.wording import join_some

_COLBERT = "artifact.metadata"
_COLBERT_KEYS = (
    *("query_maxlen", "doc_maxlen", "query_token_id", "doc_token_id", "mask_punctuation"),
    *("attend_to_mask_tokens", "similarity", "dim"),
)
_MODULES, _SETTINGS = "modules.json", "config_sentence_transformers.json"
_LENGTHS = (
    *("max_seq_length", "do_lower_case", "query_length", "document_length", "query_expansion"),
    *("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs"),
    *("config_kwargs", "processing_kwargs"),
)
# Keys of a config for what each token attends to, of all layers or of some.
_DIRECTION = re.compile(r"causal|bidirectional|^is_decoder$")
_SPANS = ("sliding_window", "layer_types")
_ROPE_KEYS = ("rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor")
_ROUTING = ("num_experts_per_tok", "top_k", "norm_topk_prob", "normalize_gates")
# Files that other facts, or a tokenizer's own rules, decide about.
_OTHER_FILES = frozenset({"config.json", _MODULES, _SETTINGS, _COLBERT, *TOKENIZER_FILES})
_TOKENIZER_FILE = re.compile(r"tokenizer|\.(spm|bpe|codes|vocab|tiktoken|model|jinja)$")

_Store = Literal[
    "settings",
    "lengths",
    "config",
    "positions",
    "colbert",
    "modules",
    "module",
    "router",
    "file",
    "",
]
_FactId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that a folder states: its value, and where a result has it.

    `written` is the value in the file if `value` is one that is equal for all releases. `number` is that of
    the module in the chain. A fact without a `store` is compared and never written.
    """

    label: str
    value: Any
    store: _Store = ""
    key: str = ""
    place: str = ""
    written: Any = None
    number: int = 0

    @property
    def is_trivial(self) -> bool:
        """True for a value that says no more than the lack of one."""
        return self.value in (None, False, {}, [], "") or self.value == "cosine"


class _HeldFact(NamedTuple):
    """A fact and the member that states it."""

    member: str
    fact: Fact


@dataclass(frozen=True)
class JoinedFacts:
    """Facts of a result from those of its members: problems, warnings, and what the template lacks.

    `left_files` maps each member to the files beside its weights that are not part of the result, and `heads`
    are the files of heads that are, unopened.
    """

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    left_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    _added: tuple[_HeldFact, ...] = ()
    _removed: tuple[str, ...] = ()
    _members: Mapping[str, Checkpoint] = field(default_factory=dict)

    @property
    def agree(self) -> bool:
        """True if no member states what another does not, or differently."""
        return not self.problems and not self.warnings

    def write(self, out: Path, template: Checkpoint) -> None:
        """Write the facts that the template lacks into `out`, a copy of the template's folder."""
        for name in self._removed:
            (out / name).unlink(missing_ok=True)
        for member, fact in self._added:
            _write_fact(fact, self._members[member], out, template)


def join_facts(
    template: Checkpoint,
    members: Mapping[str, Checkpoint],
    *,
    chosen: bool,
    trunks: Sequence[str] = (),
    adapter: bool = False,
    towers: bool = False,
) -> JoinedFacts:
    """Return the facts of a result whose files come from `template`, by those of all members.

    If the template was `chosen`, it decides. Of the members in `trunks` only the text trunk is used, so that
    they state no more than its attention. With `adapter`, the result is an adapter, which states no fact.
    With `towers`, other members give towers with their processors: neither attention nor files, except heads,
    are compared.
    """
    template_name = next(
        (n for n, one in members.items() if one.folder == template.folder), template.folder.name
    )
    others = {n: one for n, one in members.items() if one.folder != template.folder}
    stated = {template_name: read_facts(template)}
    for name, other in others.items():
        facts = read_facts(other)
        if name in trunks:
            facts = {k: f for k, f in facts.items() if _is_direction(f)}
        elif [m.kind for m in other.chain] != [m.kind for m in template.chain]:
            # Chains that differ are no pair of modules, and are a difference by themselves.
            facts = {k: f for k, f in facts.items() if f.store not in ("modules", "module")}
        stated[name] = facts
    if towers:
        stated = {
            name: {k: f for k, f in facts.items() if not (_is_direction(f) or _is_plain_file(f))}
            for name, facts in stated.items()
        }
    joiner = _Joiner(template_name, stated, chosen, adapter, frozenset(trunks))
    joiner.join()
    joiner.join_modules(template, {n: c for n, c in others.items() if n not in trunks})
    left_files = {} if adapter else joiner.list_left(members, trunks)
    return JoinedFacts(
        tuple(joiner.problems),
        (*joiner.warnings, *joiner.describe_added()),
        left_files,
        tuple(joiner.heads),
        tuple(() if adapter else joiner.added),
        tuple(joiner.removed),
        members,
    )


class _Joiner:
    """A joiner of the facts that members state, by label; the first member is the template."""

    def __init__(
        self,
        template: str,
        stated: Mapping[str, Mapping[_FactId, Fact]],
        chosen: bool,
        adapter: bool,
        trunks: frozenset[str],
    ) -> None:
        self.template, self.stated = template, stated
        self.chosen, self.adapter, self.trunks = chosen, adapter, trunks
        # The option of a step that chooses whose facts are followed.
        self.option = "base" if adapter else "template"
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.added: list[_HeldFact] = []
        self.kept: list[_HeldFact] = []
        self.removed: list[str] = []
        self.left: dict[str, list[str]] = {}
        self.heads: list[str] = []

    def join(self) -> None:
        """Apply the rule to every fact that any member states."""
        for key in dict.fromkeys(key for facts in self.stated.values() for key in facts):
            holders = {n: facts[key] for n, facts in self.stated.items() if key in facts}
            if any(fact.store == "file" for fact in holders.values()):
                self._join_file(key[0], holders)
            else:
                self._join_fact(key, holders)

    def _join_fact(self, key: _FactId, holders: Mapping[str, Fact]) -> None:
        own = holders.get(self.template)
        first = self.template if own or self.chosen else next(iter(holders))
        for name, fact in holders.items():
            if own is None and self.chosen and fact.store and not fact.is_trivial:
                self.warnings.append(
                    f"'{name}' states {_describe(fact)}, and '{first}' none; the {self.option} is followed"
                )
            elif first in holders and fact.value != holders[first].value:
                self._add_difference(first, name, holders[first], fact)
        if own is None and not self.chosen and holders[first].store:
            self.added.append(_HeldFact(first, holders[first]))
        elif own and _is_direction(own) and self._find_silent(own):
            self.kept.append(_HeldFact(self.template, own))

    def _add_difference(self, first: str, second: str, a: Fact, b: Fact) -> None:
        text = describe_difference(a.label, a.value, b.value, a.place)
        pair = f"'{first}' and '{second}': {text}"
        if self.chosen:
            self.warnings.append(f"{pair}; the {self.option} is followed")
        else:
            self.problems.append(Problem(f"{pair}; choose one with '{self.option}'"))

    def _find_silent(self, fact: Fact) -> list[str]:
        """Return the whole members that do not state a fact."""
        key = fact.label, fact.number
        return [n for n in self.stated if key not in self.stated[n] and n not in self.trunks]

    def _join_file(self, name: str, holders: Mapping[str, Fact]) -> None:
        """Keep a file that is equal in all members that have it; leave a head out if it differs."""
        values = {fact.value for fact in holders.values()}
        is_head = not any(map(_is_plain_file, holders.values()))
        keeps = self.template in holders and (self.chosen or not is_head)
        if is_head and (keeps or (len(values) == 1 and not self.chosen)):
            self.heads.append(name)
        if len(values) == 1:
            holder, fact = next(iter(holders.items()))
            if self.template not in holders:
                self._add_file(name, holder, fact)
            elif is_head and self._find_silent(fact):
                self.kept.append(_HeldFact(holder, fact))
            return
        losers = [holder for holder in holders if not (keeps and holder == self.template)]
        kept = f"; that of '{self.template}' is kept" if keeps else ""
        self.warnings.append(f"{name} differs and is left out: of {_quote(losers)}{kept}")
        for holder in losers:
            self.left.setdefault(holder, []).append(name)
        self.removed += [] if keeps else [name]

    def _add_file(self, name: str, holder: str, fact: Fact) -> None:
        if self.chosen:
            self.left.setdefault(holder, []).append(name)
            self.warnings.append(
                f"'{holder}' has {name}, and '{self.template}' none; the template is followed"
            )
        else:
            self.added.append(_HeldFact(holder, fact))

    def join_modules(self, template: Checkpoint, others: Mapping[str, Checkpoint]) -> None:
        """Note a member with modules where the template, which cannot get them, has none or others."""
        own = _list_kinds(template)
        for name, other in others.items():
            kinds = _list_kinds(other)
            text = f"'{name}' has the modules {kinds}, and '{self.template}' {own or 'none'}"
            if self.adapter or not kinds or kinds == own:
                continue
            if self.chosen:
                self.warnings.append(f"{text}; the template is followed")
            elif not own:
                self.problems.append(Problem(f"{text}; choose one with '{self.option}'"))

    def describe_added(self) -> Iterator[str]:
        """Yield one line for each member whose facts only some members state."""
        ending = "the result has it"
        if self.adapter:
            ending = "an adapter has none of it, and 'base' names the model that it lies on"
        for group in (self.added, self.kept):
            shown = [held for held in group if not held.fact.is_trivial or _is_direction(held.fact)]
            for name in dict.fromkeys(held.member for held in shown):
                facts = [held.fact for held in shown if held.member == name]
                silent = dict.fromkeys(other for fact in facts for other in self._find_silent(fact))
                yield (
                    f"'{name}' states {', '.join(map(_describe, facts))}, and {_quote(silent)} "
                    f"{'does' if len(silent) == 1 else 'do'} not; {ending}"
                )

    def list_left(
        self, members: Mapping[str, Checkpoint], trunks: Sequence[str]
    ) -> dict[str, tuple[str, ...]]:
        """Return, for each member, its files other than weights that the result does not have."""
        lists = {
            n: [*self.left.get(n, ()), *list_left_out(c)]
            for n, c in members.items()
            if n not in trunks
        }
        for name in lists:
            heads = files_not_copied(members[name]).get(WEIGHTS)
            if heads:
                self.warnings.append(
                    f"{join_some(heads)} of '{name}' is left out: beside the weights that its classes read"
                )
        return {name: tuple(dict.fromkeys(files)) for name, files in lists.items() if files}


def _quote(names: Sequence[str] | Mapping[str, None]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _describe(fact: Fact) -> str:
    return fact.label if fact.store == "file" else f"{fact.label} {shorten_value(fact.value)}"


def _list_kinds(checkpoint: Checkpoint) -> str:
    return " + ".join(module.kind for module in checkpoint.chain)


def _is_direction(fact: Fact) -> bool:
    return fact.store == "config" and _DIRECTION.search(fact.key) is not None


def _is_plain_file(fact: Fact) -> bool:
    """Return whether a fact is a file other than that of a head."""
    rule = rule_of(Path(fact.key).name)
    return fact.store == "file" and not (rule is not None and rule.why == HEAD_FILE)


# ── the table ───────────────────────────────────────────────────────────────────────────────────


def read_facts(checkpoint: Checkpoint) -> dict[_FactId, Fact]:
    """Return every fact that a folder states, in a form that is equal for all releases."""
    facts = (fact for read in _TABLE for fact in read(checkpoint))
    return {(fact.label, fact.number): fact for fact in facts}


def _read_modules(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the options of each module, by classic names, and its extra keys in modules.json."""
    for number, module in enumerate(checkpoint.chain):
        path = module_config_path(checkpoint.folder, module)
        if module.path and not (module.kind.endswith("Transformer") or module.kind in ROUTERS):
            for key, value in _read_options(checkpoint, module).items():
                if key not in MODULE_SIZES and value is not None:
                    yield Fact(
                        f"{module.kind}'s {key}", value, "module", key, f" ({path})", number=number
                    )
    for number, module in enumerate(checkpoint.modules):
        for key, value in read_entries(checkpoint.folder / _MODULES)[number].items():
            if key not in ("idx", "name", "path", "type"):
                label = f"{module.kind}'s {key}"
                yield Fact(label, value, "modules", key, f" ({_MODULES})", number=number)


def _read_options(checkpoint: Checkpoint, module: ModuleFolder) -> Mapping[str, Any]:
    config = module_config(checkpoint.folder, module)
    if module.kind == "Pooling":
        prompt = config.get("include_prompt", True)
        return {"mode": " + ".join(pooling_modes(config)), "prompt": prompt}
    return config


def _read_router(checkpoint: Checkpoint) -> Iterator[Fact]:
    for number, module in enumerate(checkpoint.modules):
        if module.kind in ROUTERS:
            parameters = read_router_config(checkpoint.folder, module)[1].get("parameters")
            for key, value in parameters.items() if isinstance(parameters, dict) else ():
                yield Fact(f"{module.kind}'s {key}", value, "router", key, number=number)


def _read_settings(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield prompts, the default prompt, the similarity and the other settings of the whole model."""
    for key, value in read_settings(checkpoint.folder).items():
        if key == "prompts":
            prompts = {name: text for name, text in (value or {}).items() if text}
            yield Fact(key, prompts, "settings", key)
        elif key in ("__version__", "activation_fn"):
            continue  # of the release, and of the labels
        elif value is not None or key == "default_prompt_name":
            yield Fact(key, value, "" if key == "model_type" else "settings", key)


def _read_lengths(checkpoint: Checkpoint) -> Iterator[Fact]:
    if not checkpoint.modules:
        return
    stored = read_trunk_settings(checkpoint.trunk)
    tokenizer = read_object_if_any(checkpoint.trunk / "tokenizer_config.json")
    settings = {"do_lower_case": False, **stored}
    length = stored.get("max_seq_length") or tokenizer.get("model_max_length")
    # A tokenizer without a limit has a number beyond all bounds.
    settings["max_seq_length"] = length if length and length < 1e9 else None
    for key in _LENGTHS:
        if settings.get(key) is not None and settings[key] != {}:
            yield Fact(key, settings[key], "lengths", key)


def _read_colbert(checkpoint: Checkpoint) -> Iterator[Fact]:
    metadata = read_object_if_any(checkpoint.folder / _COLBERT)
    for key in _COLBERT_KEYS:
        if key in metadata:
            yield Fact(key, metadata[key], "colbert", key)


def _read_config(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield what the config says of attention and routing, other than the defaults of its class."""
    config = trunk_config(checkpoint.config)
    defaults = declared_defaults(config.get("model_type"))
    for key, value in config.items():
        if _DIRECTION.search(key):
            unset = defaults.get(key, None if key == "is_causal" else False)
        elif key in (*_SPANS, *_ROUTING):
            unset = defaults.get(key)
        else:
            continue
        is_full = key == "layer_types" and set(value or ()) <= {"full_attention"}
        if value is not None and value != unset and not is_full:
            of = "attention, config.json's" if _DIRECTION.search(key) else "config.json's"
            yield Fact(f"{of} {key}", value, "config", key)


def _read_rope(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the options of rotary positions in one form; all are written together."""
    config = trunk_config(checkpoint.config)
    stored = {key: config[key] for key in _ROPE_KEYS if config.get(key) is not None}
    for key, value in rope_options(config).items() if stored else ():
        yield Fact(f"config.json's {key}", value, "positions", key, written=stored)


def _read_labels(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield labels and activation of a classifier's outputs, from the files and keys of any release."""
    config = checkpoint.config
    block = config.get("sentence_transformers")
    block = block if isinstance(block, dict) else {}
    activation = (
        read_settings(checkpoint.folder).get("activation_fn")
        or block.get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    if activation:
        name = str(activation).rpartition(".")[2]
        written = {**block, "activation_fn": str(activation)}
        yield Fact("activation_fn", name, "config", "sentence_transformers", written=written)
    labels = config.get("id2label")
    if isinstance(labels, dict) and not all(str(v).startswith("LABEL_") for v in labels.values()):
        named = {str(k): v for k, v in labels.items()}
        yield Fact("id2label", named, "config", "id2label")


def _read_files(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the files that no other fact is about, such as heads and licences, by content."""
    trunk = checkpoint.parts[""]
    known_files = {*layout_files(checkpoint.folder, checkpoint.chain)}
    for path in copied_files(checkpoint):
        name = path.relative_to(checkpoint.folder).as_posix()
        # The names of the trunk's files are those of a model without a folder for the trunk.
        short = name.removeprefix(f"{trunk}/") if trunk else name
        is_known = short in _OTHER_FILES or _TOKENIZER_FILE.search(short) or name in known_files
        if not is_known:
            yield Fact(short, _hash_content(path), "file", name)


def _hash_content(path: Path) -> str:
    """Return a hash of a file's bytes, or of a JSON object without the release that wrote it."""
    if path.suffix == ".json":
        content = read_json(path)
        if isinstance(content, dict):
            return repr(sorted((k, v) for k, v in content.items() if k != "transformers_version"))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_TABLE: tuple[Callable[[Checkpoint], Iterator[Fact]], ...] = (
    *(_read_modules, _read_router, _read_settings, _read_lengths, _read_colbert),
    *(_read_config, _read_rope, _read_labels, _read_files),
)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────


def _write_fact(fact: Fact, member: Checkpoint, out: Path, template: Checkpoint) -> None:
    """Write a member's fact into `out`, a copy of the template's folder."""
    value = fact.value if fact.written is None else fact.written
    trunk = out / template.parts[""]
    if fact.store == "file":
        short = fact.key.removeprefix(f"{member.parts['']}/") if member.parts[""] else fact.key
        is_in_root = (member.folder / fact.key).parent == member.folder
        target = out / fact.key if is_in_root else trunk / short
        copy_file(member.folder / fact.key, target, member.folder)
    elif fact.store in ("config", "positions"):
        path = trunk / "config.json"
        changes = value if fact.store == "positions" else {fact.key: value}
        if fact.key == "id2label":
            changes["label2id"] = {label: int(number) for number, label in value.items()}
        whole = fact.key in ("sentence_transformers", "id2label")
        config = read_object_if_any(path)
        config = {**config, **changes} if whole else with_trunk_config(config, changes)
        write_json(path, config, durable=False)
    elif fact.store == "modules":
        entries = read_entries(out / _MODULES)
        entries[fact.number][fact.key] = value
        write_json(out / _MODULES, entries, durable=False)
    elif fact.store == "router":
        path, content = read_router_config(out, template.modules[fact.number])
        parameters = {**(content.get("parameters") or {}), fact.key: value}
        write_json(path, {**content, "parameters": parameters}, durable=False)
    elif fact.store:
        path = {
            "settings": out / _SETTINGS,
            "colbert": out / _COLBERT,
            "lengths": trunk_settings_path(trunk),
            "module": out / module_config_path(out, template.chain[fact.number]),
        }[fact.store]
        write_json(path, {**read_object_if_any(path), fact.key: value}, durable=False)
