"""The facts that a model folder states: choices that were made for the model, and their files.

Facts are modules and pooling, prompts, lengths, similarity, the direction of attention, labels, files of
heads. `read_facts` returns all of them, and `write_fact` puts one into the folder of another model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.files import write_json
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import (
    TOKENIZER_FILES,
    find_rule,
    read_model_json,
    read_object_if_any,
)
from emberge.model_folder.model_config import (
    TextLimit,
    TrunkConfig,
    change_trunk_config,
    read_rope_options,
)
from emberge.model_folder.model_files import copy_file, list_copied_files
from emberge.model_folder.st_layout import (
    MODULE_SIZES,
    MODULES_FILE,
    SETTINGS_FILE,
    ModuleFolder,
    find_module_config,
    find_trunk_settings,
    list_layout_files,
    read_module_config,
    read_pooling_modes,
    read_router_config,
    read_settings,
    read_trunk_settings,
)
from emberge.model_folder.tokenizers import read_chat_template

_COLBERT_FILE = "artifact.metadata"
_COLBERT_KEYS = (
    *("query_maxlen", "doc_maxlen", "query_token_id", "doc_token_id", "mask_punctuation"),
    *("attend_to_mask_tokens", "similarity", "dim"),
)
_INPUT_KEYS = (
    *("max_seq_length", "do_lower_case", "query_length", "document_length", "query_expansion"),
    *("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs"),
    *("config_kwargs", "processing_kwargs"),
)
# Keys of a config for what each token attends to, of all layers or of some.
_DIRECTION_KEY = re.compile(r"causal|bidirectional|^is_decoder$")
_CHOICE_KEY = re.compile(
    r"^(sliding_window|layer_types|local_attention|num_experts_per_tok|top_k|norm_topk_prob|"
    r"global_attn_every_n_layers|relative_attention_\w+|position_buckets|\w*pre_attn_scalar|"
    r"normalize_gates|classifier_pooling|normalize|\w*norm_eps(ilon)?|\w*_(multiplier|softcapping))$"
)
_ROPE_KEYS = ("rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor")
# Files that other facts, or a tokenizer's own rules, decide about.
_COMPARED_FILES = frozenset(
    {"config.json", MODULES_FILE, SETTINGS_FILE, _COLBERT_FILE, *TOKENIZER_FILES}
)
_TOKENIZER_FILE = re.compile(r"tokenizer|\.(spm|bpe|codes|vocab|tiktoken|model|jinja)$")

FactId = tuple[str, int]
"""Label of a fact and number of its module, which no other fact of the folder has."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that a model's folder states: its value, and the file of a result that stores it.

    `store` is a row of `_STORES`, and `key` the name of the value in that file; `written` are the keys to
    write, if they are not `key` with `value`. A fact that is a whole file has no store, but its path in the
    model as `file`, and as `file_reason` the reason of its rule (`HEAD_REASON`). A fact with neither is
    compared and never written. `module_number` is that of the module in `all_modules`, `source` the file for
    messages, and a fact that `is_direction` says what each token attends to.
    """

    label: str
    value: Any
    store: str = ""
    key: str = ""
    source: str = ""
    written: Mapping[str, Any] | None = None
    module_number: int = 0
    is_default: bool = False
    is_direction: bool = False
    file: str = ""
    file_reason: str = ""

    @property
    def is_trivial(self) -> bool:
        """True for a value that says no more than the lack of one."""
        return self.is_default or self.value in (None, False, {}, [], "", "cosine")


def read_facts(checkpoint: Checkpoint) -> dict[FactId, Fact]:
    """Return every fact that a folder states, in one form for all releases."""
    facts = (fact for read in _READERS for fact in read(checkpoint))
    return {(fact.label, fact.module_number): fact for fact in facts}


def _read_modules(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the options of each module, and its extra keys in modules.json."""
    for number, module in enumerate(checkpoint.all_modules):
        options: Mapping[str, Any] = {}
        if module.is_router:
            yield from _read_router(checkpoint.folder, module, number)
        elif module.path and not module.kind.endswith("Transformer"):
            options = read_module_config(checkpoint.folder, module)
        if options and module.kind == "Pooling":
            prompt = options.get("include_prompt", True)
            options = {"mode": " + ".join(read_pooling_modes(options)), "prompt": prompt}
        source = f" ({find_module_config(checkpoint.folder, module)})"
        for key, value in options.items():
            if key not in MODULE_SIZES and value is not None:
                label = f"{module.kind}'s {key}"
                yield Fact(label, value, "module", key, source, module_number=number)
        for key, value in module.options.items():
            label = f"{module.kind}'s {key}"
            yield Fact(label, value, "modules", key, f" ({MODULES_FILE})", module_number=number)


def _read_router(folder: Path, router: ModuleFolder, number: int) -> Iterator[Fact]:
    """Yield the routes and the parameters of a router."""
    content = read_router_config(folder, router)[1]
    yield Fact(f"{router.kind}'s structure", content.get("structure"), module_number=number)
    parameters = content.get("parameters")
    for key, value in parameters.items() if isinstance(parameters, dict) else ():
        yield Fact(f"{router.kind}'s {key}", value, "router", key, module_number=number)


def _read_settings(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the settings of the whole model: prompts, similarity, chat template, ColBERT's keys."""
    for key, value in read_settings(checkpoint.folder).items():
        if key == "prompts":
            prompts = {name: text for name, text in (value or {}).items() if text}
            yield Fact(key, prompts, "settings", key)
        elif key in ("__version__", "activation_fn"):
            continue  # of the release, and of the labels
        elif value is not None or key == "default_prompt_name":
            yield Fact(key, value, "" if key == "model_type" else "settings", key)
    if template := read_chat_template(checkpoint.tokenizer_folder):
        yield Fact("chat_template", template, "tokenizer", "chat_template")
    metadata = read_object_if_any(checkpoint.folder / _COLBERT_FILE)
    yield from (Fact(k, metadata[k], "colbert", k) for k in _COLBERT_KEYS if k in metadata)


def _read_input_settings(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield the settings of inputs: greatest length, lower case, ColBERT's lengths, options of loading."""
    if not checkpoint.modules:
        return
    stored = read_trunk_settings(checkpoint.trunk)
    tokenizer = read_object_if_any(checkpoint.trunk / "tokenizer_config.json")
    settings = {"do_lower_case": False, **stored, "max_seq_length": None}
    length = stored.get("max_seq_length") or tokenizer.get("model_max_length")
    # A tokenizer without a limit has a number beyond all bounds.
    if isinstance(length, int | float) and 0 < length < 1e9:
        settings["max_seq_length"] = min(length, TextLimit.of(checkpoint).positions or length)
    for key in _INPUT_KEYS:
        if settings.get(key) is not None and settings[key] != {}:
            yield Fact(key, settings[key], "inputs", key)


def _read_config(checkpoint: Checkpoint) -> Iterator[Fact]:
    """Yield what the config says of attention, routing and numbers."""
    trunk = TrunkConfig(checkpoint.config)
    config = trunk.stated
    for key, value in config.items():
        is_direction = _DIRECTION_KEY.search(key) is not None
        if value is None or not (is_direction or _CHOICE_KEY.fullmatch(key)):
            continue
        unset = trunk.defaults.get(key, False if is_direction and key != "is_causal" else None)
        is_full = key == "layer_types" and set(value or ()) <= {"full_attention"}
        yield Fact(
            f"{'attention, ' if is_direction else ''}config.json's {key}",
            value,
            "config",
            key,
            is_default=value == unset or is_full,
            is_direction=is_direction,
        )
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
    trunk = checkpoint.folder_by_prefix[""]
    known_files = {*list_layout_files(checkpoint.folder, checkpoint.all_modules)}
    for path in list_copied_files(checkpoint):
        name = path.relative_to(checkpoint.folder).as_posix()
        # The names of the trunk's files are those of a model without a folder for the trunk.
        short = name.removeprefix(f"{trunk}/") if trunk else name
        is_known = short in _COMPARED_FILES or _TOKENIZER_FILE.search(short) or name in known_files
        rule = find_rule(path.name)
        if rule is not None and not is_known:
            yield Fact(short, _hash_content(path), file=name, file_reason=rule.reason)


def _hash_content(path: Path) -> str:
    """Return a hash of a file's bytes, or of a JSON object without the release that wrote it."""
    if path.suffix == ".json":
        content = read_model_json(path)
        if isinstance(content, dict):
            return repr(sorted((k, v) for k, v in content.items() if k != "transformers_version"))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_READERS: tuple[Callable[[Checkpoint], Iterator[Fact]], ...] = (
    *(_read_modules, _read_settings, _read_input_settings, _read_config, _read_labels, _read_files),
)

# Functions that return a store's file, from the result's folder, a model and a module's number.
_STORES: Mapping[str, Callable[[Path, Checkpoint, int], Path]] = {
    "modules": lambda out, *_: out / MODULES_FILE,
    "settings": lambda out, *_: out / SETTINGS_FILE,
    "colbert": lambda out, *_: out / _COLBERT_FILE,
    "inputs": lambda out, model, _: find_trunk_settings(out / model.folder_by_prefix[""]),
    "config": lambda out, model, _: out / model.locate_in_trunk("config.json"),
    "labels": lambda out, model, _: out / model.locate_in_trunk("config.json"),
    "tokenizer": lambda out, model, _: out / model.locate_in_trunk("tokenizer_config.json"),
    "module": lambda out, model, i: out / find_module_config(out, model.all_modules[i]),
    "router": lambda out, model, i: read_router_config(out, model.all_modules[i])[0],
}


def write_fact(fact: Fact, member: Checkpoint, out: Path, template: Checkpoint) -> None:
    """Write a member's fact into `out`, a copy of the template's folder."""
    if fact.file:
        # Only a file of the member's trunk has another label than its path.
        is_in_trunk = fact.label != fact.file
        target = template.locate_in_trunk(fact.label) if is_in_trunk else fact.file
        copy_file(member.folder / fact.file, out / target, member.folder)
        return
    path = _STORES[fact.store](out, template, fact.module_number)
    content = read_model_json(path) if path.is_file() else {}
    keys = {fact.key: fact.value} if fact.written is None else fact.written
    if fact.store == "config":
        changed: Any = change_trunk_config(content, keys)
    elif fact.store == "modules":
        modules_before = template.all_modules[: fact.module_number]
        entry_number = sum(not module.is_in_route for module in modules_before)
        changed = [{**e, **keys} if i == entry_number else e for i, e in enumerate(content)]
    elif fact.store == "router":
        changed = {**content, "parameters": {**(content.get("parameters") or {}), **keys}}
    else:
        changed = {**content, **keys}
    if changed != content:
        write_json(path, changed, durable=False)
