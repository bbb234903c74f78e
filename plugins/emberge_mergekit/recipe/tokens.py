"""Translation of a config's tokenizer into the step that makes a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emberge_mergekit.config.chat import fault_of
from emberge_mergekit.config.names import ModelName, read_model, read_text
from emberge_mergekit.config.reading import ConfigValue, Faults
from emberge_mergekit.config.schema import Config
from emberge_mergekit.recipe.parameters import NONE
from emberge_mergekit.recipe.writing import Sheet, flow

Refer = Callable[[ModelName], str]


def needs_vocabulary(config: Config) -> bool:
    """Return whether the config sets a tokenizer or a chat template."""
    return config.tokenizer is not None or config.chat_template is not None


def write_vocabulary(sheet: Sheet, name: str, config: Config, refer: Refer, faults: Faults) -> None:
    """Write the vocabulary step named `name`; `refer` returns the recipe's reference to a model."""
    models = config.models
    model_keys = {model.key for model in models}
    line = config.tokenizer.line if config.tokenizer is not None else config.line
    sheet.add(1, f"{name}:", line)
    sheet.add(2, "mergekit_vocabulary:")
    sheet.add(3, f"models: [{', '.join(refer(model) for model in models)}]")
    if config.base is not None:
        sheet.add(3, f"base: {refer(config.base)}", config.base.line)
    for key, value, option_line in _write_options(config, refer, model_keys, faults):
        sheet.add(3, f"{key}: {value}", option_line)
    tokens = config.tokenizer.tokens if config.tokenizer is not None else {}
    if tokens:
        sheet.add(3, "tokens:")
        for token, entry in tokens.items():
            rule = _write_rule(entry, refer, model_keys, faults)
            sheet.add(4, f"{flow(token)}: {rule}", entry.line)


def _write_options(
    config: Config, refer: Refer, model_keys: set[tuple[str | None, ...]], faults: Faults
) -> Iterator[tuple[str, str, int]]:
    tokenizer = config.tokenizer
    if tokenizer is None:
        yield "source", "null", config.line
    elif isinstance(tokenizer.source, ModelName):
        if tokenizer.source.key not in model_keys:
            message = f"the tokenizer's source '{tokenizer.source}' is none of the models merged"
            faults.add(tokenizer.source.line, f"{message}; give it one of them, base or union")
        yield "source", refer(tokenizer.source), tokenizer.line
    else:
        yield "source", tokenizer.source, tokenizer.line
    if tokenizer is not None and tokenizer.multiple is not None:
        yield "pad_to_multiple_of", str(tokenizer.multiple), tokenizer.line
    if config.chat_template is not None:
        line = config.lines["chat_template"]
        fault = fault_of(config.chat_template)
        if fault:
            faults.add(line, fault)
        yield "chat_template", flow(config.chat_template), line
    if config.dtype is not None and tokenizer is not None:
        yield "dtype", config.dtype, config.lines["dtype"]


def _write_rule(
    entry: ConfigValue, refer: Refer, model_keys: set[tuple[str | None, ...]], faults: Faults
) -> str:
    """Return one token's rule as YAML, `{model: …, token: …, force: true}`, and report its problems."""
    if not isinstance(entry.value, dict):
        faults.add(entry.line, f"{entry.label} is `{{source, force}}`, not {entry.words}")
        return "{}"
    entry.refuse_unknown(("source", "force"), faults)
    source = entry.entries.get("source", NONE)
    if source.value is None:
        faults.add(entry.line, f"{entry.label} needs a 'source': a model, or {{kind: zero}}")
        return "{}"
    entries = _write_source(source, refer, model_keys, faults)
    force = entry.entries.get("force", NONE).value
    if force not in (None, True, False):
        faults.add(entry.line, f"'force' of {entry.label} is true or false")
    if force:
        entries["force"] = "true"
    return "{" + ", ".join(f"{key}: {value}" for key, value in entries.items()) + "}"


_KINDS: Mapping[str, tuple[str, ...]] = {
    "zero": ("kind",),
    "model_token": ("kind", "model", "token", "token_id"),
}


def _write_source(
    entry: ConfigValue, refer: Refer, model_keys: set[tuple[str | None, ...]], faults: Faults
) -> dict[str, str]:
    if not isinstance(entry.value, dict) or "kind" not in entry.value:
        return _write_model(entry, refer, model_keys, faults)
    kind = entry.entries["kind"]
    if kind.value not in _KINDS:
        faults.add(kind.line, f"'kind' is zero or model_token, not {kind.words}")
        return {}
    entry.refuse_unknown(_KINDS[kind.value], faults)
    if kind.value == "zero":
        return {"zero": "true"}
    options = {key: option for key, option in entry.entries.items() if option.value is not None}
    token_keys: list[Any] = [key for key in ("token", "token_id") if key in options]
    if len(token_keys) != 1 or "model" not in options:
        faults.add(entry.line, "a model_token has a 'model', and either 'token' or 'token_id'")
        return {}
    entries = _write_model(options["model"], refer, model_keys, faults)
    (key,) = token_keys
    value = options[key]
    if key == "token_id" and type(value.value) is not int:
        faults.add(value.line, f"'token_id' is a whole number, not {value.words}")
    elif key == "token":
        read_text(value, faults)
    return {**entries, key: flow(value.value)}


def _write_model(
    entry: ConfigValue, refer: Refer, model_keys: set[tuple[str | None, ...]], faults: Faults
) -> dict[str, str]:
    model = read_model(entry, faults)
    if model is None:
        return {}
    if model.key not in model_keys:
        faults.add(entry.line, f"'{model}' is none of the models merged")
    return {"model": refer(model)}
