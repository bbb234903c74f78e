"""A mergekit config, read strictly: its entries, and every key that mergekit would pass over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emberge import suggest

from emberge_mergekit.config.names import ModelName, read_model, read_text
from emberge_mergekit.config.reading import ConfigValue, Faults
from emberge_mergekit.recipe.parameters import NONE, Parameters, read_parameters

# Keys that earlier releases of mergekit read and the present one passes over, with what to do instead.
FORMER_KEYS: Mapping[str, str] = {
    "out_path": "give this document a 'name', by which others take it as a model, and say --out",
    "input_model_parameters": "give each model its 'parameters'",
}
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
    "chat_template",
)
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
    """One slice, or the one merge of whole models; `parameters` from the nearest to the widest."""

    inputs: tuple[ConfigModel, ...]
    base: ModelName | None
    parameters: tuple[Parameters, ...]
    line: int


@dataclass(frozen=True)
class ConfigTokens:
    """Entry of a config for the tokenizer: `source` is "union", "base" or a model."""

    source: str | ModelName
    line: int
    tokens: Mapping[str, ConfigValue] = field(default_factory=dict)
    multiple: int | None = None


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
    chat_template: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def models(self) -> list[ModelName]:
        """Every model that is named, once each, the base first."""
        named = [self.base, *(part.base for part in self.parts)]
        named += [one.model for part in self.parts for one in part.inputs]
        return list({m.key: m for m in named if m is not None}.values())


def read_config(document: ConfigValue, faults: Faults) -> Config:
    """Read one document of a mergekit YAML; every problem is noted, and the faulty part left out."""
    document.refuse_unknown(KEYS, faults, FORMER_KEYS)
    given = {key: one for key, one in document.entries.items() if one.value is not None}
    shape = [key for key in ("models", "slices", "modules") if given.get(key, NONE).value]
    if len(shape) != 1:
        listed = " and ".join(f"'{key}'" for key in shape) or "none"
        faults.add(
            document.line, f"a config has one of 'models', 'slices' and 'modules', not {listed}"
        )
        return Config(document.line)
    base = read_model(given["base_model"], faults) if "base_model" in given else None
    shared = read_parameters(given.get("parameters", NONE), faults)
    return Config(
        document.line,
        name=read_text(given.get("name"), faults),
        method=read_text(given.get("merge_method"), faults) or "",
        base=base,
        parts=_read_parts(given, base, (shared,), faults),
        sliced=_read_container(given).entries.get("slices", NONE).value is not None,
        dtype=_read_dtype(given.get("dtype"), faults),
        out_dtype=_read_dtype(given.get("out_dtype"), faults),
        tokenizer=_read_tokenizer(given, faults),
        chat_template=read_text(given.get("chat_template"), faults),
        lines={key: one.line for key, one in document.entries.items()},
    )


def _read_container(given: Mapping[str, ConfigValue]) -> ConfigValue:
    """Return the mapping with `models` or `slices`: the config, or its one module."""
    modules = given.get("modules")
    if modules is not None and isinstance(modules.value, dict) and len(modules.value) == 1:
        (module,) = modules.entries.values()
        if isinstance(module.value, dict):
            return module
    return ConfigValue(dict(given), 1, "the config")


def _read_parts(
    given: Mapping[str, ConfigValue],
    base: ModelName | None,
    scopes: tuple[Parameters, ...],
    faults: Faults,
) -> tuple[ConfigPart, ...]:
    if "modules" in given:
        module = _read_module(given["modules"], faults)
        if module is None:
            return ()
        own = read_parameters(module.get("parameters", NONE), faults)
        return _read_parts(module, base, (own, *scopes), faults)
    if "models" in given:
        whole = given["models"]
        inputs = [_read_input(one, faults, sliced=False) for one in _listed(whole, faults)]
        return (ConfigPart(tuple(i for i in inputs if i is not None), base, scopes, whole.line),)
    slices = [_read_slice(one, base, scopes, faults) for one in _listed(given["slices"], faults)]
    return tuple(one for one in slices if one is not None)


def _read_module(modules: ConfigValue, faults: Faults) -> Mapping[str, ConfigValue] | None:
    if not isinstance(modules.value, dict):
        faults.add(modules.line, f"'modules' is a mapping of modules, not {modules.words}")
        return None
    for name, one in modules.entries.items():
        if name != "default":
            faults.add(
                one.line,
                f"modules: '{name}' is not supported, as only text models are merged, whose one module is "
                "'default'; give a part of a model another strategy by a recipe's `rules`",
            )
    module = modules.entries.get("default")
    if module is None or not isinstance(module.value, dict):
        return None
    module.refuse_unknown(("models", "slices", "parameters"), faults)
    given = {key: one for key, one in module.entries.items() if one.value}
    if len({"models", "slices"} & given.keys()) != 1:
        faults.add(module.line, "a module has either 'models' or 'slices'")
        return None
    return given


def _read_slice(
    found: ConfigValue, base: ModelName | None, scopes: tuple[Parameters, ...], faults: Faults
) -> ConfigPart | None:
    if not isinstance(found.value, dict):
        faults.add(found.line, f"a slice is `{{sources: […]}}`, not {found.words}")
        return None
    found.refuse_unknown(("sources", "base_model", "parameters", "residual_weight"), faults)
    given = {key: one for key, one in found.entries.items() if one.value is not None}
    if "residual_weight" in given:
        faults.add(
            given["residual_weight"].line,
            "'residual_weight' is not supported, and mergekit does not use it either; "
            "leave it out, and set 'scale' under a source's parameters to weaken a layer",
        )
    if "sources" not in given or not given["sources"].value:
        faults.add(found.line, "a slice needs 'sources'")
        return None
    inputs = [_read_input(one, faults, sliced=True) for one in _listed(given["sources"], faults)]
    own = read_parameters(given.get("parameters", NONE), faults)
    if "base_model" in given:
        base = read_model(given["base_model"], faults)
    counts = {i.layers[1] - i.layers[0] for i in inputs if i is not None and i.layers is not None}
    if len(counts) > 1:
        faults.add(found.line, "all sources of a slice must have the same number of layers")
    return ConfigPart(tuple(i for i in inputs if i is not None), base, (own, *scopes), found.line)


def _read_input(found: ConfigValue, faults: Faults, *, sliced: bool) -> ConfigModel | None:
    needed = ("model", "layer_range") if sliced else ("model",)
    what = f"{{{', '.join(needed)}, parameters}}"
    if not isinstance(found.value, dict):
        faults.add(found.line, f"{found.label} is `{what}`, not {found.words}")
        return None
    found.refuse_unknown((*needed, "parameters"), faults)
    missing = [key for key in needed if found.entries.get(key, NONE).value is None]
    if missing:
        faults.add(found.line, f"{found.label} needs '{missing[0]}'")
        return None
    model = read_model(found.entries["model"], faults)
    layers = _read_layers(found.entries["layer_range"], faults) if sliced else None
    own = read_parameters(found.entries.get("parameters", NONE), faults)
    if model is None or (sliced and layers is None):
        return None
    return ConfigModel(model, own, found.line, layers)


def _read_layers(found: ConfigValue, faults: Faults) -> tuple[int, int] | None:
    values = [one.value for one in found.value] if isinstance(found.value, list) else []
    whole = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if len(values) != 2 or not whole or not 0 <= values[0] < values[1]:
        faults.add(found.line, "'layer_range' is [first, end], the end being left out: [0, 12]")
        return None
    return values[0], values[1]


def _listed(found: ConfigValue, faults: Faults) -> Sequence[ConfigValue]:
    if isinstance(found.value, list):
        return found.value
    faults.add(found.line, f"{found.label} is a list, not {found.words}")
    return ()


def _read_dtype(found: ConfigValue | None, faults: Faults) -> str | None:
    text = read_text(found, faults)
    if text is None or found is None:
        return None
    name = text.removeprefix("torch.")
    if name not in _DTYPES:
        hint = suggest(name, _DTYPES) or f"; there are {', '.join(_DTYPES)}"
        faults.add(found.line, f"{found.label} cannot be '{text}'{hint}")
        return None
    return name


def _read_tokenizer(given: Mapping[str, ConfigValue], faults: Faults) -> ConfigTokens | None:
    if "tokenizer_source" in given and "tokenizer" in given:
        faults.add(
            given["tokenizer"].line, "'tokenizer' and 'tokenizer_source' say the same; keep one"
        )
        return None
    if "tokenizer_source" in given:
        source = _read_source(given["tokenizer_source"], faults)
        return ConfigTokens(source, given["tokenizer_source"].line) if source else None
    found = given.get("tokenizer")
    if found is None:
        return None
    if not isinstance(found.value, dict):
        faults.add(
            found.line,
            f"'tokenizer' is `{{source, tokens, pad_to_multiple_of}}`, not {found.words}",
        )
        return None
    found.refuse_unknown(("source", "tokens", "pad_to_multiple_of"), faults)
    own = {key: one for key, one in found.entries.items() if one.value is not None}
    source = _read_source(own["source"], faults) if "source" in own else "union"
    multiple = own.get("pad_to_multiple_of", NONE)
    if multiple.value is not None and (type(multiple.value) is not int or multiple.value < 1):
        faults.add(multiple.line, "'pad_to_multiple_of' is a whole number from 1")
    tokens = own.get("tokens", NONE)
    if tokens.value is not None and not isinstance(tokens.value, dict):
        faults.add(tokens.line, f"'tokens' is a mapping of tokens, not {tokens.words}")
        return None
    return ConfigTokens(source, found.line, tokens.value or {}, multiple.value) if source else None


def _read_source(found: ConfigValue, faults: Faults) -> str | ModelName | None:
    if found.value in ("union", "base"):
        return str(found.value)
    return read_model(found, faults)
