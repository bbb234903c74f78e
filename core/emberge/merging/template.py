"""Everything of a model folder that is not weights: compared between models, carried over to the result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.merging.checkpoint import Checkpoint, ModuleFolder, read_json
from emberge.merging.vocabulary import TOKENIZER_FILES

__all__ = ["carry_over", "differences", "notes"]

_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".bpe", ".vocab", ".py")
_LEFT = ("artifact.json", "trainer_state.json", "adapter_config.json", "quantize_config.json")
_FOLDERS = ("additional_chat_templates",)
_CLASSIC = "sentence_transformers.models."
# Names of modules that old releases of sentence-transformers have under `sentence_transformers.models`.
_KINDS = frozenset(
    {"Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm", "CNN", "LSTM"}
)
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
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
# A plain transformers folder may say less than another of the same model: only what both say can differ.


def differences(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    """What keeps two models from being one embedding model: `key: a here, b there`."""
    for key in _MUST_AGREE:
        a, b = first.config.get(key), second.config.get(key)
        if a is not None and b is not None and a != b:
            yield f"config.json's {key} is {a!r} in one and {b!r} in the other"
    if not first.modules or not second.modules:
        return
    kinds = [[m.kind for m in c.modules] for c in (first, second)]
    if kinds[0] != kinds[1]:
        yield f"the modules are {' + '.join(kinds[0])} in one and {' + '.join(kinds[1])} in the other"
        return
    for a, b in zip(first.modules, second.modules, strict=True):
        mine, other = (_meaning(c, m) for c, m in ((first, a), (second, b)))
        for key in sorted(mine.keys() & other.keys()):
            if mine[key] != other[key]:
                yield f"{a.kind}'s {key} is {mine[key]!r} in one and {other[key]!r} in the other"


def notes(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    """Smaller differences, in which the template is followed."""
    pairs = [(first.config, second.config, key) for key in _SHOULD_AGREE]
    for file, keys in (
        ("config_sentence_transformers.json", ("prompts", "similarity_fn_name")),
        ("sentence_bert_config.json", ("max_seq_length", "do_lower_case")),
    ):
        pairs += [(_json(first.folder / file), _json(second.folder / file), key) for key in keys]
    for a, b, key in pairs:
        if a.get(key) is not None and b.get(key) is not None and a[key] != b[key]:
            yield f"{key} is {a[key]!r} in one and {b[key]!r} in the other"


def carry_over(
    template: Checkpoint, out: Path, *, dtype: str, tokenizer: Path | None = None
) -> None:
    """Write configs, tokenizer and modules of the template into `out`; never its README.

    modules.json gets the classic type names, which old and new releases load; `dtype` goes into the
    config; `tokenizer` is the folder whose tokenizer files are taken instead.
    """
    for path in _files(template):
        place = out / path.relative_to(template.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    if tokenizer is not None:
        for name in TOKENIZER_FILES:
            (out / name).unlink(missing_ok=True)
            if (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, out / name)
    config = out / template.trunk.relative_to(template.folder) / "config.json"
    if config.is_file():
        _write(config, _with_dtype(read_json(config), dtype))
    for module in template.modules:
        # An installed package may have lost folders that hold no file, such as `2_Normalize`.
        (out / module.path).mkdir(parents=True, exist_ok=True)
    if template.modules:
        _write(out / "modules.json", [_listed(i, m) for i, m in enumerate(template.modules)])
        _make_classic(template, out)


def _files(template: Checkpoint) -> Iterator[Path]:
    folders = [template.folder, template.trunk]
    folders += [template.folder / m.path for m in template.modules]
    folders += [template.folder / name for name in _FOLDERS]
    for folder in dict.fromkeys(f for f in folders if f.is_dir()):
        for path in sorted(folder.iterdir()):
            named = path.suffix in _SUFFIXES and not path.name.endswith(".index.json")
            if path.is_file() and named and path.name not in _LEFT:
                yield path


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    old = "torch_dtype" in config
    changed = {**config, "torch_dtype" if old else "dtype": dtype}
    if old and "dtype" in config:
        changed["dtype"] = dtype
    return changed


def _listed(index: int, module: ModuleFolder) -> dict[str, Any]:
    ours = module.type.startswith("sentence_transformers.") and module.kind in _KINDS
    type_ = _CLASSIC + module.kind if ours else module.type
    return {"idx": index, "name": str(index), "path": module.path, "type": type_}


def _make_classic(template: Checkpoint, out: Path) -> None:
    """Configs of the newest release in the words of the older ones, which both can read."""
    for module in template.modules:
        path = out / module.path / "config.json"
        if module.kind == "Pooling" and path.is_file():
            _write(path, _classic_pooling(read_json(path)))
    path = out / template.trunk.relative_to(template.folder) / "sentence_bert_config.json"
    config = _json(path)
    if config.get("transformer_task") == "feature-extraction" and set(
        config.get("modality_config", {})
    ) <= {"text"}:
        kept = {k: config[k] for k in ("max_seq_length", "do_lower_case") if k in config}
        _write(path, {"do_lower_case": False, **kept})


def _classic_pooling(config: Mapping[str, Any]) -> dict[str, Any]:
    modes = config.get("pooling_mode")
    if modes is None:
        return dict(config)
    chosen = [modes] if isinstance(modes, str) else list(modes)
    if not set(chosen) <= set(_FLAGS):
        return dict(config)
    dimension = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    flags = {flag: mode in chosen for mode, flag in _FLAGS.items()}
    prompt = config.get("include_prompt", True)
    return {"word_embedding_dimension": dimension, **flags, "include_prompt": prompt}


def _meaning(checkpoint: Checkpoint, module: ModuleFolder) -> dict[str, Any]:
    """What a module's config says, whichever release wrote it."""
    if module.kind == "Transformer" or not module.path:
        return {}
    config = _json(checkpoint.folder / module.path / "config.json")
    if module.kind != "Pooling":
        return {k: v for k, v in config.items() if not k.startswith("module_")}
    classic = _classic_pooling(config)
    modes = [mode for mode, flag in _FLAGS.items() if classic.get(flag)]
    return {"mode": " + ".join(modes) or "mean", "prompt": classic.get("include_prompt", True)}


def _json(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
