"""The layout of a folder of SentenceTransformers as an encoder's: read, changed, and written back.

A file is written only if its content changes, and unknown keys are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.files import read_json, write_json
from emberge.model_folder import (
    POOLING,
    Checkpoint,
    ModuleFolder,
    find_trunk_settings,
    read_object,
    read_pooling_modes,
    read_settings,
    read_trunk_settings,
)

_MODULES, _SETTINGS = "modules.json", "config_sentence_transformers.json"
# Prefix of the types of modules that every release reads.
STOCK_PREFIX = "sentence_transformers.models."
# Entry of `modality_config` for inputs that go through the transformer.
FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
# Stock modules that may come after a transformer.
_KINDS_AFTER_TRUNK = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})


@dataclass(frozen=True)
class Layout:
    """The layout of a checkpoint by its files; `modules` are the modules after the trunk.

    If `bare` is true, the folder is a plain transformers folder, without modules.json.
    """

    folder: Path
    trunk: str = ""
    modules: tuple[ModuleFolder, ...] = ()
    bare: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    pooling: tuple[str, ...] = ()
    include_prompt: bool = True

    @property
    def trunk_folder(self) -> Path:
        """The transformer's folder."""
        return self.folder / self.trunk

    @classmethod
    def read(cls, folder: Path) -> Layout:
        """Return the layout of a checkpoint, read without its weights.

        Raises:
            CheckpointError: if the folder has no config, or modules that need remote code or do not turn a
                transformer's states into one embedding.
        """
        path = folder / _MODULES
        modules = Checkpoint(folder).modules
        if not modules:
            if not (folder / "config.json").is_file():
                raise CheckpointError(
                    f"{folder}: has neither modules.json nor config.json, so no model"
                )
            return cls(folder, bare=True)
        require_stock_modules(folder)
        trunk, *after = modules
        if trunk.kind != "Transformer":
            raise CheckpointError(
                f"{path}: starts with a {trunk.kind} module; text_encoder needs a Transformer"
            )
        settings = read_trunk_settings(folder / trunk.path)
        pooling, include_prompt = _read_pooling(folder, after)
        return cls(
            folder,
            trunk.path,
            tuple(after),
            max_length=settings.get("max_seq_length"),
            lower_case=bool(settings.get("do_lower_case")),
            prompts=read_settings(folder).get("prompts") or {},
            pooling=pooling,
            include_prompt=include_prompt,
        )

    def write(self, target: Path, width: int) -> None:
        """Make the files of `target`, a copy of the layout's folder without weights, agree with the layout.

        `width` is the size of the transformer's states, for a pooling without a config.
        """
        before = Layout.read(target)
        _write_modules(self, before, target)
        for module in self.modules:
            (target / module.path).mkdir(exist_ok=True)
            if module.kind == "Pooling":
                _write_pooling(self, before, target / module.path / "config.json", width)
        _write_lengths(self, before, target)
        _write_prompts(self, before, target)


def require_stock_modules(folder: Path) -> None:
    """Refuse a folder with a module that sentence-transformers does not define, or with several encoders.

    Raises:
        CheckpointError: if there is such a module, or a router of texts to encoders; names it.
    """
    checkpoint = Checkpoint(folder)
    for module in checkpoint.all_modules:
        if not module.type.startswith("sentence_transformers."):
            raise CheckpointError(
                f"{folder / _MODULES}: module '{module.type}' needs remote code, which is not run"
            )
    first = next(iter(checkpoint.modules), None)
    if first is not None and first.is_router:
        raise CheckpointError(
            f"{folder / _MODULES}: module '{first.kind}' has an encoder for each kind of text; use the "
            "folder that one of them came from"
        )


def _read_pooling(folder: Path, after: Sequence[ModuleFolder]) -> tuple[tuple[str, ...], bool]:
    """Return the modes of the Pooling after a transformer, () without a config, and whether prompts count.

    Raises:
        CheckpointError: if modules do not turn states into one embedding per text, or a mode is unknown.
    """
    for number, module in enumerate(after):
        if module.kind not in _KINDS_AFTER_TRUNK:
            raise CheckpointError(
                f"{folder / _MODULES}: module '{module.kind}' is not known to work after a Transformer"
            )
        if number == 0 and module.kind != "Pooling":
            raise CheckpointError(
                f"{folder / _MODULES}: module '{module.kind}' comes before Pooling, where it works on "
                "tokens; that is a multi-vector model, which text_encoder does not train"
            )
    if not after:
        return (), True
    path = folder / after[0].path / "config.json"
    if not path.is_file():
        return (), True
    config = read_object(path)
    modes = read_pooling_modes(config)
    for mode in modes:
        if mode not in POOLING:
            raise CheckpointError(
                f"{path}: pooling_mode '{mode}' is none of {', '.join(POOLING)}; get the file again"
            )
    return modes, bool(config.get("include_prompt", True))


def write_modalities(target: Path, modalities: Sequence[str]) -> None:
    """Declare in the files of `target` that the model reads `modalities` ("text", …) by its chat template.

    Releases of SentenceTransformers before 6 do not read such a folder.
    """
    settings = find_trunk_settings(target / Checkpoint(target).modules[0].path)
    method_by_modality: dict[str, Any] = dict.fromkeys(modalities, FORWARD)
    config = _read_if_any(settings)
    new = {
        "transformer_task": "feature-extraction",
        "modality_config": {
            **method_by_modality,
            "message": {**FORWARD, "format": "structured"},
        },
        "module_output_name": "token_embeddings",
    }
    write_json(settings, {**config, **new}, durable=False)


def _write_modules(layout: Layout, before: Layout, target: Path) -> None:
    def list_modules(layout: Layout) -> list[tuple[str, str]]:
        return [(module.kind, module.path) for module in layout.modules]

    if not before.bare and list_modules(layout) == list_modules(before):
        return
    path = target / _MODULES
    listed = {str(e.get("path", "")): e for e in (() if before.bare else read_json(path))}
    modules = (ModuleFolder("Transformer", layout.trunk), *layout.modules)
    entries = [
        listed.get(module.path, {"path": module.path, "type": STOCK_PREFIX + module.kind})
        for module in modules
    ]
    write_json(path, _number_entries(entries), durable=False)
    for module in before.modules:
        if module.path and module.path not in {kept.path for kept in layout.modules}:
            shutil.rmtree(target / module.path, ignore_errors=True)


def _number_entries(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of modules.json numbered in order, named by number unless they have a word."""
    numbered = []
    for index, entry in enumerate(entries):
        name = str(entry.get("name", ""))
        number = {"idx": index, "name": str(index) if not name or name.isdigit() else name}
        numbered.append({**number, **entry, **number})  # the numbers first, and the new ones
    return numbered


def _write_pooling(layout: Layout, before: Layout, path: Path, width: int) -> None:
    is_unchanged = (layout.pooling, layout.include_prompt) == (
        before.pooling,
        before.include_prompt,
    )
    if is_unchanged and path.is_file():
        return
    old = _read_if_any(path)
    if "pooling_mode" in old:
        words = [POOLING[word][0] for word in layout.pooling]
        new: dict[str, Any] = {"pooling_mode": words[0] if len(words) == 1 else words}
    else:
        new = {"word_embedding_dimension": old.get("word_embedding_dimension", width)}
        new |= {flag: word in layout.pooling for word, (_, flag) in POOLING.items()}
    write_json(path, {**old, **new, "include_prompt": layout.include_prompt}, durable=False)


def _write_lengths(layout: Layout, before: Layout, target: Path) -> None:
    path = find_trunk_settings(target / layout.trunk)
    is_unchanged = (layout.max_length, layout.lower_case) == (before.max_length, before.lower_case)
    if not is_unchanged or not path.is_file():
        new = {"max_seq_length": layout.max_length, "do_lower_case": layout.lower_case}
        write_json(path, _read_if_any(path) | new, durable=False)


def _write_prompts(layout: Layout, before: Layout, target: Path) -> None:
    path = target / _SETTINGS
    if path.is_file() and dict(layout.prompts) == dict(before.prompts):
        return
    default_settings: dict[str, Any] = {
        "similarity_fn_name": "cosine",
        "prompts": {},
        "default_prompt_name": None,
    }
    settings = read_settings(target) if path.is_file() else default_settings
    write_json(path, {**settings, "prompts": dict(layout.prompts)}, durable=False)


def _read_if_any(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one without a file."""
    return read_object(path) if path.is_file() else {}
