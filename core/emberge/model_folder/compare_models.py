"""Everything of a model folder that is not weights: compared between models, carried over to the result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.model_folder.checkpoint import Checkpoint, ModuleFolder, read_json
from emberge.model_folder.model_files import TOKENIZER_FILES, carried_files, tokenizer_folder
from emberge.model_folder.st_layout import classic_files, module_config, pooling_modes

__all__ = ["carry_over", "differences", "notes", "same_tokenizer", "unlike"]

_MUST_AGREE = (
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "position_embedding_type",
)
_SHOULD_AGREE = ("rope_theta", "rope_parameters", "rope_scaling", "sliding_window", "is_causal")
_SHAPES = ("in_features", "out_features", "dimension", "input_dim", "hidden_dim", "out_channels")
# What a model says of itself beside its modules; versions say nothing of what it computes.
_SETTINGS = "config_sentence_transformers.json"
_LENGTHS = "sentence_bert_config.json"
_COLBERT = "artifact.metadata"
_COLBERT_KEYS = (
    *("query_maxlen", "doc_maxlen", "query_token_id", "doc_token_id", "mask_punctuation"),
    *("attend_to_mask_tokens", "similarity", "dim"),
)
_LONG = 60
# A plain transformers folder may say less than another of the same model: only what both say can differ.


def unlike(first: Checkpoint, second: Checkpoint, *, modules: bool = True) -> Iterator[str]:
    """What makes the tensors of two models different things: `file's key is a in one and b in the other`.

    A base need not have the `modules` of its descendants.
    """
    for key in _MUST_AGREE:
        found = list(_compare(key, first.config, second.config, "config.json's "))
        yield from found
        if found and key == "model_type":
            return  # all else follows from it
    if not (modules and first.modules and second.modules):
        return
    kinds = [" + ".join(m.kind for m in c.chain) for c in (first, second)]
    if kinds[0] != kinds[1]:
        yield f"the modules are {kinds[0]} in one and {kinds[1]} in the other (modules.json)"
        return
    for a, mine, other in _modules(first, second):
        for key in _SHAPES:
            yield from _compare(key, mine, other, f"{a.kind}'s ", f" ({a.path}/config.json)")


def differences(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    """What keeps two models of one architecture from being one model, unless one is chosen."""
    if (
        first.modules
        and second.modules
        and [m.kind for m in first.chain] == [m.kind for m in second.chain]
    ):
        for a, mine, other in _modules(first, second):
            for key in sorted((mine.keys() & other.keys()) - set(_SHAPES)):
                yield from _compare(key, mine, other, f"{a.kind}'s ", f" ({a.path}/config.json)")
    mine, other = _settings(first), _settings(second)
    for key in sorted(mine.keys() & other.keys()):
        yield from _compare(key, mine, other)


def notes(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    """Smaller differences, in which the template is followed."""
    for key in _SHOULD_AGREE:
        yield from _compare(key, first.config, second.config, "config.json's ")
    for path in first.folder.glob("*.py"):
        other = second.folder / path.name
        if other.is_file() and other.read_bytes() != path.read_bytes():
            yield f"the code in {path.name} differs"


def same_tokenizer(first: Checkpoint, second: Checkpoint) -> bool:
    """Return whether two models have equal tokenizer files, byte for byte."""
    folders = tokenizer_folder(first), tokenizer_folder(second)
    for a, b in ((folders[0] / name, folders[1] / name) for name in TOKENIZER_FILES):
        if a.is_file() != b.is_file() or (a.is_file() and a.read_bytes() != b.read_bytes()):
            return False
    return True


def carry_over(
    template: Checkpoint, out: Path, *, dtype: str, tokenizer: Path | None = None
) -> None:
    """Write configs, tokenizer and modules of the template into `out`; never its README.

    modules.json gets the classic type names, which old and new releases load, where every module has one;
    `dtype` goes into the config; `tokenizer` is the folder whose tokenizer files are taken instead. A file
    in which nothing changes comes over byte for byte.
    """
    for path in carried_files(template):
        place = out / path.relative_to(template.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    trunk = out / template.trunk.relative_to(template.folder)
    if tokenizer is not None:
        _take_tokenizer(Checkpoint(tokenizer), trunk)
    config = trunk / "config.json"
    if config.is_file():
        old = read_json(config)
        new = _with_dtype(old, dtype)
        if new != old:
            _write(config, new)
    for module in template.chain:
        # An installed package may have lost folders that hold no file, such as `2_Normalize`.
        (out / module.path).mkdir(parents=True, exist_ok=True)
    for name, content in classic_files(template).items():
        _write(out / name, content)


def _take_tokenizer(source: Checkpoint, trunk: Path) -> None:
    own = tokenizer_folder(source)
    for name in TOKENIZER_FILES:
        (trunk / name).unlink(missing_ok=True)
        if (own / name).is_file():
            shutil.copyfile(own / name, trunk / name)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    if dtype == "float32" and not {"torch_dtype", "dtype"} & set(config):
        return config  # which is what silence means
    old = "torch_dtype" in config
    changed = {**config, "torch_dtype" if old else "dtype": dtype}
    if old and "dtype" in config:
        changed["dtype"] = dtype
    # What comes out is never quantised, whatever went in.
    return {
        k: v for k, v in changed.items() if k not in ("quantization_config", "compression_config")
    }


def _compare(
    key: str, first: Mapping[str, Any], second: Mapping[str, Any], of: str = "", file: str = ""
) -> Iterator[str]:
    a, b = first.get(key), second.get(key)
    if a is not None and b is not None and a != b:
        yield f"{of}{key} is {_short(a)} in one and {_short(b)} in the other{file}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def _modules(
    first: Checkpoint, second: Checkpoint
) -> Iterator[tuple[ModuleFolder, Mapping[str, Any], Mapping[str, Any]]]:
    """Modules of two chains of equal kinds, with what their configs mean, whichever release wrote them."""
    for a, b in zip(first.chain, second.chain, strict=True):
        if a.path and not (a.kind.endswith("Transformer") or a.kind in ("Router", "Asym")):
            yield a, _meaning(first, a), _meaning(second, b)


def _meaning(checkpoint: Checkpoint, module: ModuleFolder) -> Mapping[str, Any]:
    config = module_config(checkpoint, module)
    if module.kind == "Pooling":
        prompt = config.get("include_prompt", True)
        return {"mode": " + ".join(pooling_modes(config)), "prompt": prompt}
    return config


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that a folder says of how its model is to be used, in words that all releases share."""
    said: dict[str, Any] = {}
    path = checkpoint.folder / _SETTINGS
    if path.is_file():
        said |= {k: v for k, v in _json(path).items() if k != "__version__" and v is not None}
        prompts = said.get("prompts") or {}
        said["prompts"] = {name: text for name, text in prompts.items() if text}
    if checkpoint.modules:
        said |= _lengths(checkpoint)
    metadata = _json(checkpoint.folder / _COLBERT)
    said |= {key: metadata[key] for key in _COLBERT_KEYS if key in metadata}
    return said | _labels(checkpoint.config, said)


def _lengths(checkpoint: Checkpoint) -> dict[str, Any]:
    own = _json(checkpoint.trunk / _LENGTHS)
    tokenizer = _json(checkpoint.trunk / "tokenizer_config.json")
    said = {"do_lower_case": False, **own}
    length = own.get("max_seq_length") or tokenizer.get("model_max_length")
    # A tokenizer without a limit says so by a number beyond all bounds.
    said["max_seq_length"] = length if length and length < 1e9 else None
    names = (
        "do_lower_case",
        "max_seq_length",
        "query_length",
        "document_length",
        "query_expansion",
    )
    return {key: said[key] for key in names if said.get(key) is not None}


def _labels(config: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Names of a classifier's outputs, and what is done with them, wherever a release writes that."""
    block = config.get("sentence_transformers")
    block = block if isinstance(block, dict) else {}
    activation = (
        said.get("activation_fn")
        or block.get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    found: dict[str, Any] = {}
    if activation:
        found["activation_fn"] = str(activation).rpartition(".")[2]
    labels = config.get("id2label")
    if isinstance(labels, dict) and not all(str(v).startswith("LABEL_") for v in labels.values()):
        found["id2label"] = {str(k): v for k, v in labels.items()}
    return found


def _json(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
