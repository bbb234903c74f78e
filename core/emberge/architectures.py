"""The transformers library in this process: architectures of plugins, and quiet loading.

Loading the plugins records the architectures by name; each is registered with transformers when it is first
needed. transformers keeps one table of model types per process, and so does this module: each rank and worker
fills its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from emberge.errors import PluginError

_CLASS_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# Modules of transformers with the tables of its auto classes.
_TABLE_FILES = ("models/auto/auto_mappings.py", "models/auto/modeling_auto.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model type of a plugin: the classes of its config and of its models, each as "module:Class".

    The classes are imported when a model of the type is loaded. They follow transformers' rules for
    `AutoConfig.register` and `AutoModel.register`: the config class has the `model_type`, and each model
    class has the config class as its `config_class`. `masked_lm` is the class with a head that predicts
    masked tokens.
    """

    config: str
    model: str
    masked_lm: str | None = None

    @property
    def classes(self) -> dict[str, str]:
        """The model classes, by the name of the transformers auto class that loads them."""
        models = {"AutoModel": self.model}
        return models | ({"AutoModelForMaskedLM": self.masked_lm} if self.masked_lm else {})


# Maps a model type to the plugin that adds it and to its classes.
_ADDED_ARCHITECTURES: dict[str, tuple[str, Architecture]] = {}
_REGISTERED_TYPES: dict[str, Architecture] = {}
_LOCK = threading.RLock()


def add_architecture(plugin: str, model_type: str, architecture: Architecture) -> None:
    """Record a plugin's architecture under its model type, without importing its classes.

    Raises:
        PluginError: if another plugin has the model type, if a class is not written as "module:Class", or if
            the classes change after they were registered with transformers.
    """
    label = f"architecture '{model_type}' of plugin '{plugin}'"
    if not isinstance(architecture, Architecture):
        raise PluginError(f"{label} must be an Architecture, not a {type(architecture).__name__}")
    for class_path in (architecture.config, *architecture.classes.values()):
        if not _CLASS_PATH.fullmatch(class_path):
            raise PluginError(f"{label}: '{class_path}' must be written as 'module:Class'")
    with _LOCK:
        owner, earlier = _ADDED_ARCHITECTURES.get(model_type, (plugin, architecture))
        if owner != plugin:
            raise PluginError(
                f"plugins '{owner}' and '{plugin}' both add the model type '{model_type}'; block one of "
                f"them with EMBERGE_BLOCK, or rename it"
            )
        if earlier != architecture and model_type in _REGISTERED_TYPES:
            raise PluginError(f"{label} has other classes than before; start a new process")
        _ADDED_ARCHITECTURES[model_type] = plugin, architecture


def find_config_class(model_type: str | None) -> Any:
    """Return the config class of a model type, so that transformers' auto classes load its models.

    A plugin's classes are first imported and registered with transformers, once per process. The result is
    None if neither a plugin nor transformers has the model type. Code in a model's folder is never run.

    Raises:
        PluginError: if a plugin's classes cannot be imported, or transformers refuses them.
    """
    from transformers import CONFIG_MAPPING

    with _LOCK:
        if model_type in _ADDED_ARCHITECTURES and model_type not in _REGISTERED_TYPES:
            plugin, architecture = _ADDED_ARCHITECTURES[model_type]
            try:
                _register(model_type, architecture)
            except Exception as error:  # importing a plugin's modules runs any code
                raise PluginError(
                    f"architecture '{model_type}' of plugin '{plugin}' cannot be loaded: {error!r}"
                ) from error
            _REGISTERED_TYPES[model_type] = architecture
    # The mapping's `get` neither finds registered classes nor imports transformers' own.
    return CONFIG_MAPPING[model_type] if model_type and model_type in CONFIG_MAPPING else None


def has_config_class(model_type: str | None) -> bool:
    """Return whether there is a config class of a model type, which is imported only if no table has it."""
    if model_type in _ADDED_ARCHITECTURES or model_type in read_model_types("CONFIG_MAPPING_NAMES"):
        return True
    return find_config_class(model_type) is not None


@functools.cache
def read_model_types(table: str) -> frozenset[str]:
    """Return the model types in a table of transformers' auto classes, such as `CONFIG_MAPPING_NAMES`.

    The table is read from its source, as importing it costs seconds.
    """
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    for file in _TABLE_FILES:
        source = (Path(spec.origin).parent / file).read_text("utf-8")
        written = re.search(rf"^{table} = OrderedDict\((.*?)^\)", source, re.DOTALL | re.MULTILINE)
        if written is not None:
            included = re.findall(r"\*list\((\w+)\.items\(\)\)", written[1])
            listed = re.findall(r"""\(\s*["']([^"']+)["'],""", written[1])
            return frozenset(listed).union(*map(read_model_types, included))
    return frozenset()


def find_class_file(model_type: str) -> Path | None:
    """Return the file of the model class that a plugin has for a model type; None if no plugin has it."""
    with _LOCK:
        _, architecture = _ADDED_ARCHITECTURES.get(model_type, ("", None))
    if architecture is None:
        return None
    spec = find_spec(architecture.model.partition(":")[0])
    return Path(spec.origin) if spec is not None and spec.origin else None


def _register(model_type: str, architecture: Architecture) -> None:
    import transformers

    config = _import_class(architecture.config)
    models = {auto: _import_class(path) for auto, path in architecture.classes.items()}
    transformers.AutoConfig.register(model_type, config)
    for auto, model in models.items():
        getattr(transformers, auto).register(config, model)


def _import_class(class_path: str) -> Any:
    module, _, name = class_path.partition(":")
    return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Suppress progress bars and reports of transformers and sentence-transformers in the `with` block.

    The caller itself must check what transformers would report, such as a head without weights.
    """
    import logging as python_logging

    from transformers.utils import logging

    logger = python_logging.getLogger("sentence_transformers")
    logger_level = logger.level
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logger.setLevel(python_logging.ERROR)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logger.setLevel(logger_level)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
