"""Model classes that plugins add to those of transformers; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Architecture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model type of a plugin: the classes of its config and of its models, each as "module:Class".

    They are imported when a model of the type is loaded, and follow transformers' rules for
    `AutoConfig.register` and `AutoModel.register`: the config class has the `model_type`, the model classes
    name it as their `config_class`. `masked_lm` is the class with a head that predicts masked tokens.
    """

    config: str
    model: str
    masked_lm: str | None = None

    @property
    def classes(self) -> dict[str, str]:
        """The model classes by transformers' auto class, which loads them."""
        given = {"AutoModel": self.model, "AutoModelForMaskedLM": self.masked_lm}
        return {auto: place for auto, place in given.items() if place is not None}
