"""Reading of sentence-transformers' files in a model folder: modules, pooling, prompts, lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder.folder_files import (
    read_model_json,
    read_object,
    read_object_if_any,
    require_sound,
)

POOLING = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "cls": ("cls", "pooling_mode_cls_token"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
    "weighted_mean": ("weightedmean", "pooling_mode_weightedmean_tokens"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean_sqrt_len": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
}
"""Emberge's names of pooling modes, each with its name and its flag in config files."""
# Options of modules that earlier releases lack, with the values by which those releases behave.
_MODULE_DEFAULTS = {
    **dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding"),
    "use_residual": False,
}
MODULE_SIZES = (
    *("in_features", "out_features", "dimension", "input_dim", "hidden_dim", "out_channels"),
)
"""Keys of modules' configs on which shapes of tensors depend."""
_ROUTERS = ("Router", "Asym")
_ROUTER_CONFIGS = ("router_config.json", "config.json")
"""Names of a router's config; Asym, its predecessor, has the second one."""

_ENTRY_KEYS = ("name", "path", "type")
MODULES_FILE = "modules.json"
"""The file that lists a folder's modules."""
SETTINGS_FILE = "config_sentence_transformers.json"
"""The file of the prompts and other settings of a whole model."""
_TRUNK_SETTINGS = (
    *("sentence_bert_config.json", "sentence_roberta_config.json"),
    *("sentence_distilbert_config.json", "sentence_camembert_config.json"),
    *("sentence_albert_config.json", "sentence_xlm-roberta_config.json"),
    "sentence_xlnet_config.json",
)
_MODULE_CONFIGS = (
    *("config.json", "cnn_config.json", "lstm_config.json", "wordembedding_config.json"),
)


@dataclass(frozen=True, slots=True)
class ModuleFolder:
    """A module of a chain: its kind (`Pooling`), its folder ("" is the root), and its full type.

    `options` are the keys of its entry in modules.json that not every entry has. A module `is_in_route` if a
    router lists it.
    """

    kind: str
    path: str
    type: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    is_in_route: bool = False

    @property
    def is_router(self) -> bool:
        """True if the module contains chains of modules, each in a subfolder."""
        return self.kind in _ROUTERS


def read_modules(folder: Path) -> tuple[ModuleFolder, ...]:
    """Return the modules of modules.json, each router followed by those of its routes; none without the file.

    Raises:
        CheckpointError: if the file is no list of modules, or a module is outside the folder.
    """
    require_sound(folder, folder)
    path = folder / MODULES_FILE
    if not path.is_file():
        return ()
    entries = read_model_json(path)
    if not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{path}: is no list of modules; get the file again")
    modules: list[ModuleFolder] = []
    for entry in entries:
        words = [entry.get(key) for key in _ENTRY_KEYS] if isinstance(entry, dict) else [None]
        if not all(isinstance(word, str) for word in words):
            raise CheckpointError(
                f"{path}: a module lacks a name, a path or a type; get the file again"
            )
        options = {key: value for key, value in entry.items() if key not in (*_ENTRY_KEYS, "idx")}
        kind = entry["type"].rpartition(".")[2]
        module = ModuleFolder(kind, entry["path"], entry["type"], options)
        _require_module_folder(path, module.path)
        modules.append(module)
        modules += _read_routes(folder, module) if module.is_router else ()
    return tuple(modules)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return config_sentence_transformers.json: prompts, similarity, versions; empty without one.

    A prompt of null counts as an empty text.

    Raises:
        CheckpointError: if prompts are not texts by name, or the default names none of them.
    """
    path = folder / SETTINGS_FILE
    settings = read_object(path) if path.is_file() else {}
    prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    if isinstance(prompts, dict):
        prompts = {name: "" if text is None else text for name, text in prompts.items()}
    if not (isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())):
        raise CheckpointError(f"{path}: prompts is no object of texts by name; get the file again")
    if default is not None and default not in [*prompts]:
        raise CheckpointError(
            f"{path}: default_prompt_name '{default}' is no name of a prompt; write null"
        )
    return settings | {"prompts": prompts} if "prompts" in settings else settings


def read_trunk_settings(trunk: Path) -> dict[str, Any]:
    """Return the options of the Transformer module in `trunk` (longest text, case); empty if it has none."""
    path = find_trunk_settings(trunk)
    return read_object(path) if path.is_file() else {}


def read_module_config(folder: Path, module: ModuleFolder) -> Mapping[str, Any]:
    """Return a module's config in one form for all releases, without options that have their defaults."""
    config = read_object_if_any(folder / find_module_config(folder, module))
    return {
        key.replace("word_embedding_dimension", "embedding_dimension"): value
        for key, value in config.items()
        if key not in _MODULE_DEFAULTS or value != _MODULE_DEFAULTS[key]
    }


def read_pooling_modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return emberge's names for the pooling modes in a config of any release; `mean` by default."""
    mode = config.get("pooling_mode")
    name_by_word = {name: word for word, (name, _) in POOLING.items()}
    if mode is not None:
        words = map(str, mode if isinstance(mode, list) else [mode])
        return tuple(name_by_word.get(word, word) for word in words)
    return tuple(word for word, (_, flag) in POOLING.items() if config.get(flag)) or ("mean",)


def require_inner_name(source: Path, name: str) -> None:
    """Require that a path named by the file `source` stays inside the model folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise CheckpointError(
            f"{source}: names '{name}', which is outside the model folder; get it again"
        )


def _require_module_folder(source: Path, name: str) -> None:
    """Require that a module's folder, if it exists, is inside the model folder and sound."""
    require_inner_name(source, name)
    folder = source.parent / name
    if name and folder.is_dir():
        require_sound(folder, source.parent)


def _read_routes(folder: Path, router: ModuleFolder) -> Iterator[ModuleFolder]:
    """Yield the modules of a router's routes."""
    path, content = read_router_config(folder, router)
    types = content.get("types")
    for name, type_ in types.items() if isinstance(types, dict) else ():
        inside = f"{router.path}/{name}".removeprefix("/")
        require_inner_name(path, str(name))
        _require_module_folder(folder / MODULES_FILE, inside)
        kind = str(type_).rpartition(".")[2]
        yield ModuleFolder(kind, inside, str(type_), is_in_route=True)


def list_layout_files(folder: Path, chain: Sequence[ModuleFolder]) -> Iterator[str]:
    """Yield the paths, in the model folder, of the files that say how its modules are built."""
    yield from (MODULES_FILE, SETTINGS_FILE)
    for module in chain:
        yield find_module_config(folder, module)
        yield from (
            f"{module.path}/{name}".removeprefix("/")
            for name in (*_ROUTER_CONFIGS, *_TRUNK_SETTINGS, *_MODULE_CONFIGS)
        )


def read_router_config(folder: Path, router: ModuleFolder) -> tuple[Path, dict[str, Any]]:
    """Return the path and content of a router's config; the content is empty if it has no object."""
    paths = [folder / router.path / name for name in _ROUTER_CONFIGS]
    path = next((p for p in paths if p.is_file()), paths[0])
    return path, read_object_if_any(path)


def find_module_config(folder: Path, module: ModuleFolder) -> str:
    """Return the path of a module's config relative to the model folder; it may not exist."""
    if module.kind == "Transformer":
        path = find_trunk_settings(folder / module.path)
        return path.relative_to(folder).as_posix()
    paths = [f"{module.path}/{name}".removeprefix("/") for name in _MODULE_CONFIGS]
    return next((path for path in paths if (folder / path).is_file()), paths[0])


def find_trunk_settings(trunk: Path) -> Path:
    """Return the path of a Transformer module's options, which has several names; it may not exist."""
    paths = [trunk / name for name in _TRUNK_SETTINGS]
    return next((path for path in paths if path.is_file()), paths[0])
