"""Translation of a config's tokenizer into the step that makes a vocabulary."""

from __future__ import annotations

from collections.abc import Callable

from emberge_mergekit.config.names import ModelName
from emberge_mergekit.config.reading import Faults
from emberge_mergekit.config.schema import Config
from emberge_mergekit.recipe.writing import Sheet

Refer = Callable[[ModelName], str]


def write_vocabulary(sheet: Sheet, name: str, config: Config, refer: Refer, faults: Faults) -> None:
    """Write the vocabulary step named `name`; `refer` returns the recipe's reference to a model."""
    tokenizer = config.tokenizer
    assert tokenizer is not None
    sheet.add(1, f"{name}:", tokenizer.line)
    sheet.add(2, "mergekit_vocabulary:")
    sheet.add(3, f"models: [{', '.join(refer(model) for model in config.models)}]")
    if config.base is not None:
        sheet.add(3, f"base: {refer(config.base)}", config.base.line)
    source = tokenizer.source
    if isinstance(source, ModelName):
        if source.key not in {model.key for model in config.models}:
            message = f"the tokenizer's source '{source}' is none of the models merged"
            faults.add(source.line, f"{message}; give it one of them, base or union")
        source = refer(source)
    sheet.add(3, f"source: {source}", tokenizer.line)
    if config.dtype is not None:
        sheet.add(3, f"dtype: {config.dtype}", config.lines["dtype"])
