"""Strict reading of a mergekit config: a key that mergekit would ignore is a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emberge import suggest

from emberge_mergekit.config.names import ModelName, read_model, read_text
from emberge_mergekit.config.reading import ConfigValue, Faults
from emberge_mergekit.recipe.parameters import NONE, Parameters, read_parameters

KEYS = (
    "name",
    "merge_method",
    "base_model",
    "models",
    "slices",
    "modules",
    "parameters",
    "dtype",
    "out_dtype",
    "tokenizer_source",
    "tokenizer",
)
_UNSUPPORTED = {"chat_template": "the tokenizer keeps its own"}
_UNSUPPORTED_OF_SLICES = {"residual_weight": "mergekit does not use it either, so leave it out"}
_UNSUPPORTED_OF_TOKENIZERS = {
    "tokens": "a token that a model lacks gets the base's embedding or the mean of the others'",
    "pad_to_multiple_of": "there is one embedding for each token",
}
_DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class ConfigModel:
    """One model of a merge or a slice, with its own parameters."""

    model: ModelName
    parameters: Parameters
    line: int
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class ConfigPart:
    """One slice, or the one merge of whole models; `parameters` are ordered from inner to outer scope."""

    inputs: tuple[ConfigModel, ...]
    base: ModelName | None
    parameters: tuple[Parameters, ...]
    line: int


@dataclass(frozen=True)
class ConfigTokens:
    """Entry of a config for the tokenizer: `source` is "union", "base" or a model."""

    source: str | ModelName
    line: int


@dataclass(frozen=True)
class Config:
    """One document."""

    line: int
    name: str | None = None
    method: str = ""
    base: ModelName | None = None
    parts: tuple[ConfigPart, ...] = ()
    sliced: bool = False
    dtype: str | None = None
    out_dtype: str | None = None
    tokenizer: ConfigTokens | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def models(self) -> list[ModelName]:
        """Every model that the config names, once each, the base first."""
        named = [self.base, *(part.base for part in self.parts)]
        named += [source.model for part in self.parts for source in part.inputs]
        return list({m.key: m for m in named if m is not None}.values())


def read_config(document: ConfigValue, faults: Faults) -> Config:
    """Return one document of a mergekit YAML as a config without its faulty parts; report each problem."""
    document.refuse_unknown(KEYS, faults, _UNSUPPORTED)
    entries = {key: entry for key, entry in document.entries.items() if entry.value is not None}
    shapes = [key for key in ("models", "slices", "modules") if entries.get(key, NONE).value]
    if len(shapes) != 1:
        shape_list = " and ".join(f"'{key}'" for key in shapes) or "none"
        faults.add(
            document.line, f"a config has one of 'models', 'slices' and 'modules', not {shape_list}"
        )
        return Config(document.line)
    base = read_model(entries["base_model"], faults) if "base_model" in entries else None
    shared_parameters = read_parameters(entries.get("parameters", NONE), faults)
    return Config(
        document.line,
        name=read_text(entries.get("name"), faults),
        method=read_text(entries.get("merge_method"), faults) or "",
        base=base,
        parts=_read_parts(entries, base, (shared_parameters,), faults),
        sliced=_read_container(entries).entries.get("slices", NONE).value is not None,
        dtype=_read_dtype(entries.get("dtype"), faults),
        out_dtype=_read_dtype(entries.get("out_dtype"), faults),
        tokenizer=_read_tokenizer(entries, faults),
        lines={key: entry.line for key, entry in document.entries.items()},
    )


def _read_container(entries: Mapping[str, ConfigValue]) -> ConfigValue:
    """Return the mapping that has `models` or `slices`: the config, or its only module."""
    modules = entries.get("modules")
    if modules is not None and isinstance(modules.value, dict) and len(modules.value) == 1:
        (module,) = modules.entries.values()
        if isinstance(module.value, dict):
            return module
    return ConfigValue(dict(entries), 1, "the config")


def _read_parts(
    entries: Mapping[str, ConfigValue],
    base: ModelName | None,
    scopes: tuple[Parameters, ...],
    faults: Faults,
) -> tuple[ConfigPart, ...]:
    if "modules" in entries:
        module = _read_module(entries["modules"], faults)
        if module is None:
            return ()
        parameters = read_parameters(module.get("parameters", NONE), faults)
        return _read_parts(module, base, (parameters, *scopes), faults)
    if "models" in entries:
        models = entries["models"]
        inputs = [_read_input(one, faults, sliced=False) for one in _require_list(models, faults)]
        return (ConfigPart(tuple(i for i in inputs if i is not None), base, scopes, models.line),)
    slices = [
        _read_slice(one, base, scopes, faults) for one in _require_list(entries["slices"], faults)
    ]
    return tuple(one for one in slices if one is not None)


def _read_module(modules: ConfigValue, faults: Faults) -> Mapping[str, ConfigValue] | None:
    if not isinstance(modules.value, dict):
        faults.add(modules.line, f"'modules' is a mapping of modules, not {modules.words}")
        return None
    for name, part in modules.entries.items():
        if name != "default":
            faults.add(
                part.line,
                f"modules: '{name}' is not supported, as only text models are merged, whose one module is "
                "'default'; give a part of a model another strategy by a recipe's `rules`",
            )
    module = modules.entries.get("default")
    if module is None or not isinstance(module.value, dict):
        return None
    module.refuse_unknown(("models", "slices", "parameters"), faults)
    entries = {key: part for key, part in module.entries.items() if part.value}
    if len({"models", "slices"} & entries.keys()) != 1:
        faults.add(module.line, "a module has either 'models' or 'slices'")
        return None
    return entries


def _read_slice(
    entry: ConfigValue, base: ModelName | None, scopes: tuple[Parameters, ...], faults: Faults
) -> ConfigPart | None:
    if not isinstance(entry.value, dict):
        faults.add(entry.line, f"a slice is `{{sources: […]}}`, not {entry.words}")
        return None
    entry.refuse_unknown(("sources", "base_model", "parameters"), faults, _UNSUPPORTED_OF_SLICES)
    entries = {key: value for key, value in entry.entries.items() if value.value is not None}
    if "sources" not in entries or not entries["sources"].value:
        faults.add(entry.line, "a slice needs 'sources'")
        return None
    inputs = [
        _read_input(value, faults, sliced=True)
        for value in _require_list(entries["sources"], faults)
    ]
    parameters = read_parameters(entries.get("parameters", NONE), faults)
    if "base_model" in entries:
        base = read_model(entries["base_model"], faults)
    counts = {i.layers[1] - i.layers[0] for i in inputs if i is not None and i.layers is not None}
    if len(counts) > 1:
        faults.add(entry.line, "all sources of a slice must have the same number of layers")
    return ConfigPart(
        tuple(i for i in inputs if i is not None), base, (parameters, *scopes), entry.line
    )


def _read_input(entry: ConfigValue, faults: Faults, *, sliced: bool) -> ConfigModel | None:
    required_keys = ("model", "layer_range") if sliced else ("model",)
    form = f"{{{', '.join(required_keys)}, parameters}}"
    if not isinstance(entry.value, dict):
        faults.add(entry.line, f"{entry.label} is `{form}`, not {entry.words}")
        return None
    entry.refuse_unknown((*required_keys, "parameters"), faults)
    missing_keys = [key for key in required_keys if entry.entries.get(key, NONE).value is None]
    if missing_keys:
        faults.add(entry.line, f"{entry.label} needs '{missing_keys[0]}'")
        return None
    model = read_model(entry.entries["model"], faults)
    layers = _read_layers(entry.entries["layer_range"], faults) if sliced else None
    parameters = read_parameters(entry.entries.get("parameters", NONE), faults)
    if model is None or (sliced and layers is None):
        return None
    return ConfigModel(model, parameters, entry.line, layers)


def _read_layers(entry: ConfigValue, faults: Faults) -> tuple[int, int] | None:
    values = [item.value for item in entry.value] if isinstance(entry.value, list) else []
    all_integers = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if len(values) != 2 or not all_integers or not 0 <= values[0] < values[1]:
        faults.add(entry.line, "'layer_range' is [first, end], the end being left out: [0, 12]")
        return None
    return values[0], values[1]


def _require_list(entry: ConfigValue, faults: Faults) -> Sequence[ConfigValue]:
    if isinstance(entry.value, list):
        return entry.value
    faults.add(entry.line, f"{entry.label} is a list, not {entry.words}")
    return ()


def _read_dtype(entry: ConfigValue | None, faults: Faults) -> str | None:
    text = read_text(entry, faults)
    if text is None or entry is None:
        return None
    name = text.removeprefix("torch.")
    if name not in _DTYPES:
        hint = suggest(name, _DTYPES) or f"; there are {', '.join(_DTYPES)}"
        faults.add(entry.line, f"{entry.label} cannot be '{text}'{hint}")
        return None
    return name


def _read_tokenizer(entries: Mapping[str, ConfigValue], faults: Faults) -> ConfigTokens | None:
    if "tokenizer_source" in entries and "tokenizer" in entries:
        faults.add(
            entries["tokenizer"].line, "'tokenizer' and 'tokenizer_source' say the same; keep one"
        )
        return None
    if "tokenizer_source" in entries:
        source = _read_source(entries["tokenizer_source"], faults)
        return ConfigTokens(source, entries["tokenizer_source"].line) if source else None
    tokenizer = entries.get("tokenizer")
    if tokenizer is None:
        return None
    if not isinstance(tokenizer.value, dict):
        faults.add(tokenizer.line, f"'tokenizer' is `{{source}}`, not {tokenizer.words}")
        return None
    tokenizer.refuse_unknown(("source",), faults, _UNSUPPORTED_OF_TOKENIZERS)
    option = tokenizer.entries.get("source", NONE)
    source = _read_source(option, faults) if option.value is not None else "union"
    return ConfigTokens(source, tokenizer.line) if source else None


def _read_source(entry: ConfigValue, faults: Faults) -> str | ModelName | None:
    if entry.value in ("union", "base"):
        return str(entry.value)
    return read_model(entry, faults)
