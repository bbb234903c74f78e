"""The settings that model folders state, and the rule by which a result gets them.

A fact is a choice that was made for a model: modules and pooling, prompts, lengths, similarity, the
direction of attention, labels, files of heads. `read_facts` is the table of all of them. Members that state
a fact must agree, and a fact that only some state is written into the result. Where members differ, the
template decides if the user has named one; otherwise it is a problem.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError, Problem
from emberge.files import write_json
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.compare_models import MODULE_SIZES, describe_difference, shorten_value
from emberge.model_folder.folder_files import (
    HEAD_FILE,
    LICENCE,
    TOKENIZER_FILES,
    WEIGHTS,
    find_rule,
    read_model_json,
    read_object_if_any,
)
from emberge.model_folder.longest_text import TextLimit
from emberge.model_folder.model_config import (
    change_trunk_config,
    find_trunk_config,
    read_class_defaults,
    read_rope_options,
)
from emberge.model_folder.model_files import (
    copy_file,
    list_copied_files,
    list_files_not_copied,
    list_left_out,
)
from emberge.model_folder.st_layout import (
    MODULES,
    ROUTERS,
    SETTINGS,
    ModuleFolder,
    find_module_config,
    find_trunk_settings,
    list_layout_files,
    read_entries,
    read_module_config,
    read_pooling_modes,
    read_router_config,
    read_settings,
    read_trunk_settings,
)
from emberge.model_folder.tokenizers import read_chat_template
from emberge.wording import join_some

_COLBERT = "artifact.metadata"
_COLBERT_KEYS = (
    *("query_maxlen", "doc_maxlen", "query_token_id", "doc_token_id", "mask_punctuation"),
    *("attend_to_mask_tokens", "similarity", "dim"),
)
_LENGTHS = (
    *("max_seq_length", "do_lower_case", "query_length", "document_length", "query_expansion"),
    *("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs"),
    *("config_kwargs", "processing_kwargs"),
)
# Keys of a config for what each token attends to, of all layers or of some.
_DIRECTION = re.compile(r"causal|bidirectional|^is_decoder$")
_CHOICES = re.compile(
    r"^(sliding_window|layer_types|local_attention|num_experts_per_tok|top_k|norm_topk_prob|"
    r"global_attn_every_n_layers|relative_attention_\w+|position_buckets|\w*pre_attn_scalar|"
    r"normalize_gates|classifier_pooling|normalize|\w*norm_eps(ilon)?|\w*_(multiplier|softcapping))$"
)
_ROPE_KEYS = ("rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor")
# Files that other facts, or a tokenizer's own rules, decide about.
_OTHER_FILES = frozenset({"config.json", MODULES, SETTINGS, _COLBERT, *TOKENIZER_FILES})
_TOKENIZER_FILE = re.compile(r"tokenizer|\.(spm|bpe|codes|vocab|tiktoken|model|jinja)$")

# Stores of facts that are whole files. If members differ in these, or in a chat template, it is no error.
_FILES = ("head", "licence", "file")
_UNCHOSEN = (*_FILES, "tokenizer")
_FactId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that a model's folder states: its value, and the file of a result that stores it.

    `written` has the keys of the file, if they are not `key` with `value`. `number` is that of the module in
    the chain. `store` is a file in the root, a row of `_STORES` or, for a file, one of `_FILES`; a fact
    without one is compared and never written.
    """

    label: str
    value: Any
    store: str = ""
    key: str = ""
    place: str = ""
    written: Mapping[str, Any] | None = None
    number: int = 0
    is_default: bool = False

    @property
    def is_trivial(self) -> bool:
        """True for a value that says no more than the lack of one."""
        return self.is_default or self.value in (None, False, {}, [], "", "cosine")

    @property
    def id(self) -> _FactId:
        """Label and number of the module, which no other fact of the folder has."""
        return self.label, self.number

    @property
    def is_direction(self) -> bool:
        """True for what each token attends to."""
        return self.store == "config" and _DIRECTION.search(self.key) is not None


@dataclass
class JoinedFacts:
    """Facts of a result from those of its members: problems, warnings, and what the template lacks.

    `left_files` maps each member to its files that the result does not get, and `heads` are the files of
    heads that the result gets unopened.
    """

    template: str = ""
    chosen: bool = False
    adapter: bool = False
    trunks: Sequence[str] = ()
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_files: dict[str, list[str]] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    members: dict[str, Checkpoint] = field(default_factory=dict)
    stated: dict[str, Mapping[_FactId, Fact]] = field(default_factory=dict)
    # Facts that only some members state, each with its member; files to remove from the result.
    _noted: list[tuple[str, Fact]] = field(default_factory=list)
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

        A template that the user has `chosen` decides. Only the attention of the members in `trunks` is
        compared, as only their text trunk is used. With `adapter` the result is an adapter, which states no
        facts. With `towers` the other members give towers with their processors, so attention is not
        compared, nor are files except heads and licences.
        """
        name = next(
            (n for n, m in members.items() if m.folder == template.folder), template.folder.name
        )
        others = {n: one for n, one in members.items() if one.folder != template.folder}
        joined = cls(name, chosen, adapter, trunks, members={name: template, **others})
        for name, member in joined.members.items():
            try:
                facts = read_facts(member)
            except CheckpointError as error:
                facts = {}
                if member is not template:  # whose files are checked as a whole
                    joined.problems.append(Problem(str(error)))
            is_trunk = name in trunks and member is not template
            # Chains that differ are no pair of modules, and are a difference by themselves.
            is_pair = [m.kind for m in member.chain] == [m.kind for m in template.chain]
            joined.stated[name] = {
                key: fact
                for key, fact in facts.items()
                if (fact.is_direction or not is_trunk)
                and (is_pair or fact.store not in (MODULES, "module"))
                and not (towers and (fact.is_direction or fact.store in ("file", "tokenizer")))
            }
        joined._join()
        for name in () if adapter else [n for n in members if n not in trunks]:
            joined._list_left(name, members[name])
        joined.warnings += joined._describe_noted()
        return joined

    def write(self, out: Path, template: Checkpoint) -> None:
        """Write the facts that the template lacks into `out`, a copy of the template's folder."""
        for name in self._removed:
            (out / name).unlink(missing_ok=True)
        for member, fact in self._noted:
            _write_fact(fact, self.members[member], out, template)

    def _join(self) -> None:
        """Apply the rule to every fact that any member states, and to the modules."""
        for key in dict.fromkeys(key for facts in self.stated.values() for key in facts):
            holders = {n: facts[key] for n, facts in self.stated.items() if key in facts}
            if next(iter(holders.values())).store in _UNCHOSEN:
                self._join_file(key[0], holders)
            else:
                self._join_fact(holders)
        for name, member in self.members.items():
            if name not in self.trunks:
                self._join_modules(name, member)

    def _list_left(self, name: str, member: Checkpoint) -> None:
        """Add a member's files other than weights that no result has."""
        if files := [*self.left_files.get(name, ()), *list_left_out(member)]:
            self.left_files[name] = [*dict.fromkeys(files)]
        if heads := list_files_not_copied(member).get(WEIGHTS):
            self.warnings.append(
                f"{join_some(heads)} of '{name}' is left out: beside the weights that its classes read"
            )

    def _join_fact(self, holders: Mapping[str, Fact]) -> None:
        own = holders.get(self.template)
        first = self.template if own or self.chosen else next(iter(holders))
        for name, fact in holders.items():
            if first not in holders and fact.store and not fact.is_trivial:
                self._choose(f"'{name}' states {_describe(fact)}, and '{first}' none")
            elif first in holders and fact.value != holders[first].value:
                pair = holders[first].value, fact.value
                text = describe_difference(fact.label, *pair, holders[first].place)
                self._choose(f"'{first}' and '{name}': {text}")
        kept = holders.get(first) or [*holders.values()][-1]
        lacks = own is None and not self.chosen and kept.store
        if not kept.is_default and (lacks or (own and own.is_direction and self._find_silent(own))):
            self._noted.append((first, kept))

    def _choose(self, text: str) -> None:
        """Add a warning if the user has chosen whose facts to follow, else a problem that asks for it."""
        option = "base" if self.adapter else "template"
        if self.chosen:
            self.warnings.append(f"{text}; the {option} is followed")
        else:
            self.problems.append(Problem(f"{text}; choose one with '{option}'"))

    def _find_silent(self, fact: Fact) -> list[str]:
        """Return the whole members that do not state a fact."""
        return [n for n in self.stated if fact.id not in self.stated[n] and n not in self.trunks]

    def _join_file(self, name: str, holders: Mapping[str, Fact]) -> None:
        """Keep a file that is equal in all members that have it; leave a head out if it differs."""
        own = holders.get(self.template)
        is_equal = len({fact.value for fact in holders.values()}) == 1
        is_head = all(fact.store == "head" for fact in holders.values())
        keeps = own is not None and (self.chosen or is_equal or not is_head)
        losers = [
            holder for holder in holders if not (keeps and (is_equal or holder == self.template))
        ]
        if is_head and (keeps or (is_equal and not self.chosen)):
            self.heads.append(name)
        if own is None and self.chosen:
            self._choose(f"{_quote(losers)} has {name}, and '{self.template}' none")
        elif not is_equal:
            kept = f"; that of '{self.template}' is kept" if keeps else ""
            self.warnings.append(f"{name} differs and is left out: of {_quote(losers)}{kept}")
            self._removed += [] if keeps else [name]
        else:
            holder, fact = next(iter(holders.items()))
            if own is None or (is_head and self._find_silent(fact)):
                self._noted.append((holder, fact))
            losers = []
        for loser in losers:
            self.left_files.setdefault(loser, []).append(name)

    def _join_modules(self, name: str, member: Checkpoint) -> None:
        """Report a member with other modules than the template, which cannot get them."""
        own, kinds = (
            " + ".join(module.kind for module in one.chain)
            for one in (self.members[self.template], member)
        )
        text = f"'{name}' has the modules {kinds}, and '{self.template}' {own or 'none'}"
        if kinds and not own and self.adapter and not self.chosen:
            self.warnings.append(f"{text}; {_NO_ADAPTER_HAS}")
        elif kinds and kinds != own and (self.chosen or not own):
            self._choose(text)

    def _describe_noted(self) -> Iterator[str]:
        """Yield one line for each member whose facts only some members state."""
        shown = [(n, f) for n, f in self._noted if not f.is_trivial or f.is_direction]
        for name in dict.fromkeys(name for name, _ in shown):
            facts = [fact for member, fact in shown if member == name]
            silent = dict.fromkeys(other for fact in facts for other in self._find_silent(fact))
            yield (
                f"'{name}' states {', '.join(map(_describe, facts))}, and {_quote(silent)} "
                f"{'does' if len(silent) == 1 else 'do'} not; "
                f"{_NO_ADAPTER_HAS if self.adapter else 'the result has it'}"
            )


_NO_ADAPTER_HAS = "an adapter has none of it, and 'base' names the model that it lies on"


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _describe(fact: Fact) -> str:
    return fact.label if fact.store in _FILES else f"{fact.label} {shorten_value(fact.value)}"


def read_facts(checkpoint: Checkpoint) -> dict[_FactId, Fact]:
    """Return every fact that a folder states, in one form for all releases."""
    facts = (fact for read in _TABLE for fact in read(checkpoint))
    return {fact.id: fact for fact in facts}


def _read_modules(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the options of each module, and its extra keys in modules.json."""
    for number, module in enumerate(checkpoint.chain):
        path = find_module_config(checkpoint.folder, module)
        if module.path and not (module.kind.endswith("Transformer") or module.kind in ROUTERS):
            for key, value in _read_options(checkpoint, module).items():
                if key not in MODULE_SIZES and value is not None:
                    label = f"{module.kind}'s {key}"
                    yield Fact(label, value, "module", key, f" ({path})", number=number)
    for number, module in enumerate(checkpoint.modules):
        for key, value in read_entries(checkpoint.folder / MODULES)[number].items():
            if key not in ("idx", "name", "path", "type"):
                label = f"{module.kind}'s {key}"
                yield Fact(label, value, MODULES, key, f" ({MODULES})", number=number)


def _read_router(checkpoint: Checkpoint) -> Iterator[Fact]:
    for number, module in enumerate(checkpoint.modules):
        if module.kind in ROUTERS:
            content = read_router_config(checkpoint.folder, module)[1]
            parameters = content.get("parameters")
            yield Fact(f"{module.kind}'s structure", content.get("structure"), number=number)
            for key, value in parameters.items() if isinstance(parameters, dict) else ():
                yield Fact(f"{module.kind}'s {key}", value, "router", key, number=number)


def _read_options(checkpoint: Checkpoint, module: ModuleFolder) -> Mapping[str, Any]:
    config = read_module_config(checkpoint.folder, module)
    if module.kind == "Pooling":
        prompt = config.get("include_prompt", True)
        return {"mode": " + ".join(read_pooling_modes(config)), "prompt": prompt}
    return config


def _read_settings(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield prompts, the default prompt, the similarity and the other settings of the whole model."""
    for key, value in read_settings(checkpoint.folder).items():
        if key == "prompts":
            prompts = {name: text for name, text in (value or {}).items() if text}
            yield Fact(key, prompts, SETTINGS, key)
        elif key in ("__version__", "activation_fn"):
            continue  # of the release, and of the labels
        elif value is not None or key == "default_prompt_name":
            yield Fact(key, value, "" if key == "model_type" else SETTINGS, key)


def _read_lengths(checkpoint: Checkpoint) -> Iterator[Fact]:
    if not checkpoint.modules:
        return
    stored = read_trunk_settings(checkpoint.trunk)
    tokenizer = read_object_if_any(checkpoint.trunk / "tokenizer_config.json")
    settings = {"do_lower_case": False, **stored}
    length = stored.get("max_seq_length") or tokenizer.get("model_max_length")
    # A tokenizer without a limit has a number beyond all bounds.
    settings["max_seq_length"] = None
    if isinstance(length, int | float) and 0 < length < 1e9:
        settings["max_seq_length"] = min(length, TextLimit.of(checkpoint).positions or length)
    for key in _LENGTHS:
        if settings.get(key) is not None and settings[key] != {}:
            yield Fact(key, settings[key], "lengths", key)


def _read_chat(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the template of conversations, from either of its files."""
    if template := read_chat_template(checkpoint.tokenizer_folder):
        yield Fact("chat_template", template, "tokenizer", "chat_template")


def _read_colbert(checkpoint: Checkpoint) -> Iterator[Fact]:
    metadata = read_object_if_any(checkpoint.folder / _COLBERT)
    yield from (Fact(k, metadata[k], _COLBERT, k) for k in _COLBERT_KEYS if k in metadata)


def _read_config(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield what the config says of attention, routing and numbers."""
    config = find_trunk_config(checkpoint.config)
    defaults = read_class_defaults(config.get("model_type"))
    for key, value in config.items():
        directs = _DIRECTION.search(key)
        if not directs and not _CHOICES.fullmatch(key):
            continue
        unset = defaults.get(key, False if directs and key != "is_causal" else None)
        is_full = key == "layer_types" and set(value or ()) <= {"full_attention"}
        if value is not None:
            of = "attention, config.json's" if directs else "config.json's"
            is_default = value == unset or is_full
            yield Fact(f"{of} {key}", value, "config", key, is_default=is_default)
    # Options of rotary positions, in one form; all are written together.
    stored = {key: config[key] for key in _ROPE_KEYS if config.get(key) is not None}
    for key, value in read_rope_options(config).items() if stored else ():
        yield Fact(f"config.json's {key}", value, "config", written=stored)


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
        written = {"sentence_transformers": {**block, "activation_fn": str(activation)}}
        yield Fact("activation_fn", name, "labels", written=written)
    labels = config.get("id2label")
    labels = labels if isinstance(labels, dict) and all(map(str.isdecimal, labels)) else {}
    if not all(str(value).startswith("LABEL_") for value in labels.values()):
        numbers = {label: int(number) for number, label in labels.items()}
        yield Fact("id2label", labels, "labels", written={"id2label": labels, "label2id": numbers})


def _read_files(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the files that no other fact is about, such as heads and licences, by content."""
    trunk = checkpoint.parts[""]
    known_files = {*list_layout_files(checkpoint.folder, checkpoint.chain)}
    for path in list_copied_files(checkpoint):
        name = path.relative_to(checkpoint.folder).as_posix()
        # The names of the trunk's files are those of a model without a folder for the trunk.
        short = name.removeprefix(f"{trunk}/") if trunk else name
        is_known = short in _OTHER_FILES or _TOKENIZER_FILE.search(short) or name in known_files
        rule = find_rule(path.name)
        if rule is not None and not is_known:
            store = {HEAD_FILE: "head", LICENCE: "licence"}.get(rule.why, "file")
            yield Fact(short, _hash_content(path), store, name)


def _hash_content(path: Path) -> str:
    """Return a hash of a file's bytes, or of a JSON object without the release that wrote it."""
    if path.suffix == ".json":
        content = read_model_json(path)
        if isinstance(content, dict):
            return repr(sorted((k, v) for k, v in content.items() if k != "transformers_version"))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_TABLE: tuple[Callable[[Checkpoint], Iterator[Fact]], ...] = (
    *(_read_modules, _read_router, _read_settings, _read_lengths, _read_chat, _read_colbert),
    *(_read_config, _read_labels, _read_files),
)


# Functions that return a store's file, from the result's folder, a model and a module's number.
_STORES: Mapping[str, Callable[[Path, Checkpoint, int], Path]] = {
    "lengths": lambda out, model, _: find_trunk_settings(out / model.parts[""]),
    "config": lambda out, model, _: out / model.locate_in_trunk("config.json"),
    "labels": lambda out, model, _: out / model.locate_in_trunk("config.json"),
    "tokenizer": lambda out, model, _: out / model.locate_in_trunk("tokenizer_config.json"),
    "module": lambda out, model, i: out / find_module_config(out, model.chain[i]),
    "router": lambda out, model, i: read_router_config(out, model.modules[i])[0],
}


def _write_fact(fact: Fact, member: Checkpoint, out: Path, template: Checkpoint) -> None:
    """Write a member's fact into `out`, a copy of the template's folder."""
    if fact.store in _FILES:
        target = template.locate_in_trunk(fact.label) if "/" in fact.key else fact.key
        copy_file(member.folder / fact.key, out / target, member.folder)
        return
    find_path = _STORES.get(fact.store)
    path = find_path(out, template, fact.number) if find_path else out / fact.store
    content = read_model_json(path) if path.is_file() else {}
    keys = {fact.key: fact.value} if fact.written is None else fact.written
    if fact.store == "config":
        changed: Any = change_trunk_config(content, keys)
    elif fact.store == MODULES:
        changed = [{**e, **keys} if i == fact.number else e for i, e in enumerate(content)]
    elif fact.store == "router":
        changed = {**content, "parameters": {**(content.get("parameters") or {}), **keys}}
    else:
        changed = {**content, **keys}
    if changed != content:
        write_json(path, changed, durable=False)
