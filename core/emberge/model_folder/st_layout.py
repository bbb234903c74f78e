"""Reading and writing of a folder's SentenceTransformers files: chain, pooling, prompts, lengths.

A file is written only if its content changes, and unknown keys are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from emberge.errors import CheckpointError
from emberge.files import write_json, write_text
from emberge.model_folder.folder_files import (
    read_json,
    read_object,
    read_object_if_any,
    require_sound,
)
from emberge.tensor_files import header_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Prefix of the types of modules that every release reads.
_STOCK = "sentence_transformers.models."
# Our words for pooling, and the words and the flags of config files.
POOLING = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "cls": ("cls", "pooling_mode_cls_token"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
    "weighted_mean": ("weightedmean", "pooling_mode_weightedmean_tokens"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean_sqrt_len": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
}
# Options of modules that earlier releases did not have, as they behaved.
_MODULE_DEFAULTS = {
    **dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding"),
    "use_residual": False,
}
ROUTERS = ("Router", "Asym")
"""Types of modules that contain chains of modules, each in a subfolder."""
_ROUTER_CONFIGS = ("router_config.json", "config.json")
"""Names of a router's config; Asym, its predecessor, has the second one."""

_MODULES, _SETTINGS = "modules.json", "config_sentence_transformers.json"
_TRUNK_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_MODULE_CONFIGS = (
    *("config.json", "cnn_config.json", "lstm_config.json", "wordembedding_config.json"),
)
# Stock modules that may come after a transformer.
_KINDS_AFTER_TRUNK = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})
_ONE_OF_SEVERAL = "has an encoder for each kind of text; use the folder that one of them came from"


@dataclass(frozen=True, slots=True)
class ModuleFolder:
    """One module of a chain: its kind (`Pooling`), its folder ("" is the root), and its full type."""

    kind: str
    path: str
    type: str = ""


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
        modules = read_modules(folder)
        if not modules:
            if not (folder / "config.json").is_file():
                raise CheckpointError(
                    f"{folder}: has neither modules.json nor config.json, so no model"
                )
            return cls(folder, bare=True)
        require_stock_modules(folder)
        trunk, *after = modules
        if trunk.kind in ROUTERS:
            raise CheckpointError(f"{path}: module '{trunk.kind}' {_ONE_OF_SEVERAL}")
        if trunk.kind != "Transformer":
            raise CheckpointError(
                f"{path}: starts with a {trunk.kind} module; text_encoder needs a Transformer"
            )
        _require_embedder(path, after)
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


# ── reading ─────────────────────────────────────────────────────────────────────────────────────


def read_modules(folder: Path) -> tuple[ModuleFolder, ...]:
    """Return the modules of modules.json, in its order; none for a bare transformers folder.

    Raises:
        CheckpointError: if the file is not a list of modules, a path is outside the folder, or
            `require_sound` refuses a file or link.
    """
    require_sound(folder, folder)
    path = folder / _MODULES
    if not path.is_file():
        return ()
    modules = [
        ModuleFolder(entry["type"].rpartition(".")[2], entry["path"], entry["type"])
        for entry in read_entries(path)
    ]
    for module in modules:
        _require_place(path, module.path)
    return tuple(modules)


def read_chain(folder: Path) -> tuple[ModuleFolder, ...]:
    """Return the modules, and after each router the modules that it leads to."""
    chain: list[ModuleFolder] = []
    for module in read_modules(folder):
        chain.append(module)
        if module.kind in ROUTERS:
            chain += _read_routes(folder, module)
    return tuple(chain)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return config_sentence_transformers.json: prompts, similarity, versions; empty without one.

    A prompt of null is none, which is an empty text.

    Raises:
        CheckpointError: if prompts are not texts by name, or the default is none of them.
    """
    path = folder / _SETTINGS
    settings = read_object(path) if path.is_file() else {}
    prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    if isinstance(prompts, dict):
        prompts = {name: "" if text is None else text for name, text in prompts.items()}
    if not (isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())):
        raise CheckpointError(f"{path}: prompts is no object of texts by name; get the file again")
    if default is not None and default not in [*prompts]:
        raise CheckpointError(
            f"{path}: default_prompt_name '{default}' is no name of a prompt; write null"
        )
    return settings | {"prompts": prompts} if "prompts" in settings else settings


def read_trunk_settings(trunk: Path) -> dict[str, Any]:
    """Return the options of the Transformer module (longest text, case, modalities); empty if it has none."""
    path = trunk_settings_path(trunk)
    return read_object(path) if path.is_file() else {}


def module_config(folder: Path, module: ModuleFolder) -> Mapping[str, Any]:
    """Return a module's config in one form for all releases, without options that say what all do."""
    config = read_object_if_any(folder / module_config_path(folder, module))
    return {
        key.replace("word_embedding_dimension", "embedding_dimension"): value
        for key, value in config.items()
        if key not in _MODULE_DEFAULTS or value != _MODULE_DEFAULTS[key]
    }


def pooling_modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return emberge's names for the pooling modes in a config of any release; `mean` by default."""
    mode = config.get("pooling_mode")
    name_by_word = {name: word for word, (name, _) in POOLING.items()}
    if mode is not None:
        words = map(str, mode if isinstance(mode, list) else [mode])
        return tuple(name_by_word.get(word, word) for word in words)
    return tuple(word for word, (_, flag) in POOLING.items() if config.get(flag)) or ("mean",)


def require_inside(source: Path, name: str) -> None:
    """Require that a path named by the file `source` stays inside the model folder.

    Raises:
        CheckpointError: if it leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise CheckpointError(
            f"{source}: names '{name}', which is outside the model folder; get it again"
        )


def _require_place(source: Path, name: str) -> None:
    """Require that a module's folder, if it exists, is inside the model folder and sound."""
    require_inside(source, name)
    folder = source.parent / name
    if name and folder.is_dir():
        require_sound(folder, source.parent)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a modules.json.

    Raises:
        CheckpointError: if it is not a list of modules with names, paths and types.
    """
    listed = read_json(path)
    if not isinstance(listed, list) or not listed:
        raise CheckpointError(f"{path}: is no list of modules; get the file again")
    for entry in listed:
        keys = ("name", "path", "type")
        if not (isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in keys)):
            raise CheckpointError(
                f"{path}: a module lacks a name, a path or a type; get the file again"
            )
    return listed


def _read_routes(folder: Path, router: ModuleFolder) -> Iterator[ModuleFolder]:
    """Yield the modules that a router (or `Asym`, its predecessor) leads to."""
    path, content = read_router_config(folder, router)
    types = content.get("types")
    for name, type_ in types.items() if isinstance(types, dict) else ():
        inside = _join(router.path, name)
        require_inside(path, str(name))
        _require_place(folder / _MODULES, inside)
        yield ModuleFolder(str(type_).rpartition(".")[2], inside, str(type_))


def layout_files(folder: Path, chain: Sequence[ModuleFolder]) -> Iterator[str]:
    """Yield the paths, in the model folder, of the files that say how its modules are built."""
    yield from (_MODULES, _SETTINGS)
    for module in chain:
        yield module_config_path(folder, module)
        yield from (
            f"{module.path}/{name}".removeprefix("/")
            for name in (*_ROUTER_CONFIGS, *_TRUNK_SETTINGS, *_MODULE_CONFIGS)
        )


def read_router_config(folder: Path, router: ModuleFolder) -> tuple[Path, dict[str, Any]]:
    """Return the path and content of a router's config; the content is empty if it has no object."""
    paths = [folder / router.path / name for name in _ROUTER_CONFIGS]
    path = next((p for p in paths if p.is_file()), paths[0])
    return path, read_object_if_any(path)


def _join(folder: str, name: object) -> str:
    return f"{folder}/{name}" if folder else str(name)


def require_stock_modules(folder: Path) -> None:
    """Refuse a folder with a module that sentence-transformers does not define, on any route of a router.

    Raises:
        CheckpointError: if there is one; names it.
    """
    for module in read_chain(folder):
        if not module.type.startswith("sentence_transformers."):
            raise CheckpointError(
                f"{folder / _MODULES}: module '{module.type}' needs remote code, which is not run"
            )


def _require_embedder(path: Path, after: Sequence[ModuleFolder]) -> None:
    """Refuse modules that do not turn a transformer's states into one embedding per text."""
    has_pooling = False
    for module in after:
        if module.kind not in _KINDS_AFTER_TRUNK:
            raise CheckpointError(
                f"{path}: module '{module.kind}' is not known to work after a Transformer"
            )
        if not has_pooling and module.kind != "Pooling":
            raise CheckpointError(
                f"{path}: module '{module.kind}' comes before Pooling, where it works on tokens; "
                "that is a multi-vector model, which text_encoder does not train"
            )
        has_pooling = True


def _read_pooling(folder: Path, modules: Sequence[ModuleFolder]) -> tuple[tuple[str, ...], bool]:
    """Return the modes of the Pooling among modules, none without a config, and whether prompts are pooled.

    Raises:
        CheckpointError: if a mode is unknown.
    """
    paths = (folder / one.path / "config.json" for one in modules if one.kind == "Pooling")
    path = next(paths, None)
    if path is None or not path.is_file():
        return (), True
    config = read_object(path)
    modes = pooling_modes(config)
    for mode in modes:
        if mode not in POOLING:
            raise CheckpointError(
                f"{path}: pooling_mode '{mode}' is none of {', '.join(POOLING)}; get the file again"
            )
    return modes, bool(config.get("include_prompt", True))


def module_config_path(folder: Path, module: ModuleFolder) -> str:
    """Return the path of a module's config relative to the model folder; it may not exist."""
    if module.kind == "Transformer":
        path = trunk_settings_path(folder / module.path)
        return path.relative_to(folder).as_posix()
    paths = [f"{module.path}/{name}".removeprefix("/") for name in _MODULE_CONFIGS]
    return next((path for path in paths if (folder / path).is_file()), paths[0])


def trunk_settings_path(trunk: Path) -> Path:
    """Return the path of a Transformer module's options, under any of its names."""
    paths = [trunk / name for name in _TRUNK_SETTINGS]
    return next((path for path in paths if path.is_file()), paths[0])


# ── writing ─────────────────────────────────────────────────────────────────────────────────────


def write_modalities(target: Path, modalities: Sequence[str]) -> None:
    """Declare in the files of `target` that the model reads `modalities` ("text", …) by its chat template.

    Releases of SentenceTransformers before 6 do not read such a folder.
    """
    settings = trunk_settings_path(target / read_modules(target)[0].path)
    input_method = {"method": "forward", "method_output_name": "last_hidden_state"}
    method_by_modality: dict[str, Any] = dict.fromkeys(modalities, input_method)
    config = read_object_if_any(settings)
    new = {
        "transformer_task": "feature-extraction",
        "modality_config": {
            **method_by_modality,
            "message": {**input_method, "format": "structured"},
        },
        "module_output_name": "token_embeddings",
    }
    write_json(settings, {**config, **new}, durable=False)


def write_static_model(
    target: Path,
    vectors: NDArray[np.float32],
    tokenizer: str,
    prompts: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> None:
    """Write a model that averages a text's tokens' vectors: a StaticEmbedding and a Normalize.

    `vectors` [n, d] has a row for each token id, and `tokenizer` is the content of tokenizer.json.
    """
    from safetensors.numpy import save_file

    entries = [
        {"idx": 0, "name": "0", "path": "", "type": f"{_STOCK}StaticEmbedding"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_STOCK}Normalize"},
    ]
    write_json(target / _MODULES, entries, durable=False)
    settings = {
        "similarity_fn_name": "cosine",
        "prompts": dict(prompts),
        "default_prompt_name": None,
    }
    write_json(target / _SETTINGS, settings, durable=False)
    (target / "1_Normalize").mkdir()
    write_text(target / "tokenizer.json", tokenizer, durable=False)
    # One entry alone, as safetensors writes several in an order of chance.
    metadata = header_texts({"emberge": provenance})
    save_file({"embedding.weight": vectors}, target / "model.safetensors", metadata)


def _write_modules(layout: Layout, before: Layout, target: Path) -> None:
    def places(of: Layout) -> list[tuple[str, str]]:
        return [(module.kind, module.path) for module in of.modules]

    if not before.bare and places(layout) == places(before):
        return
    path = target / _MODULES
    listed = {str(e.get("path", "")): e for e in (() if before.bare else read_entries(path))}
    modules = (ModuleFolder("Transformer", layout.trunk), *layout.modules)
    entries = [
        listed.get(module.path, {"path": module.path, "type": _STOCK + module.kind})
        for module in modules
    ]
    write_json(path, _number_entries(entries), durable=False)
    for module in before.modules:
        if module.path and module.path not in {kept.path for kept in layout.modules}:
            shutil.rmtree(target / module.path, ignore_errors=True)


def _number_entries(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of modules.json with their places as numbers, and as names except own ones."""
    numbered = []
    for place, entry in enumerate(entries):
        name = str(entry.get("name", ""))
        number = {"idx": place, "name": str(place) if not name or name.isdigit() else name}
        numbered.append({**number, **entry, **number})
    return numbered


def _write_pooling(layout: Layout, before: Layout, path: Path, width: int) -> None:
    is_unchanged = (layout.pooling, layout.include_prompt) == (
        before.pooling,
        before.include_prompt,
    )
    if is_unchanged and path.is_file():
        return
    old = read_object_if_any(path)
    if "pooling_mode" in old:
        words = [POOLING[word][0] for word in layout.pooling]
        new: dict[str, Any] = {"pooling_mode": words[0] if len(words) == 1 else words}
    else:
        new = {"word_embedding_dimension": old.get("word_embedding_dimension", width)}
        new |= {flag: word in layout.pooling for word, (_, flag) in POOLING.items()}
    write_json(path, {**old, **new, "include_prompt": layout.include_prompt}, durable=False)


def _write_lengths(layout: Layout, before: Layout, target: Path) -> None:
    path = trunk_settings_path(target / layout.trunk)
    is_unchanged = (layout.max_length, layout.lower_case) == (before.max_length, before.lower_case)
    if not is_unchanged or not path.is_file():
        new = {"max_seq_length": layout.max_length, "do_lower_case": layout.lower_case}
        write_json(path, read_object_if_any(path) | new, durable=False)


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
