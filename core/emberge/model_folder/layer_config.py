"""Layers of a text trunk as configs describe them: how many there are, and the kind of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from emberge.model_folder.attention import load_text_config
from emberge.model_folder.compare_models import trunk_config, with_trunk_config
from emberge.model_folder.config_fields import declared_defaults

_LAYER_NUMBERS = ("mlp_only_layers",)  # lists of the numbers of layers


@dataclass(frozen=True)
class LayerConfig:
    """The part of a transformer's `config` that describes the layers of its text trunk."""

    config: Mapping[str, Any]
    COUNTS: ClassVar = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    """Keys that configs have for the number of layers."""
    KINDS: ClassVar = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")
    """Keys of lists with one entry a layer."""

    @property
    def count(self) -> int | None:
        """The number of layers by the config, or by default of its class; None if neither has one."""
        trunk = trunk_config(self.config)
        settings = {**declared_defaults(trunk.get("model_type")), **trunk}
        count = next((settings[key] for key in self.COUNTS if key in settings), None)
        return count if isinstance(count, int) and not isinstance(count, bool) else None

    @property
    def count_key(self) -> str:
        """The key of the number of layers in the config, or the usual one if the config has none."""
        trunk = trunk_config(self.config)
        return next((key for key in self.COUNTS if key in trunk), self.COUNTS[0])

    @property
    def kinds(self) -> dict[str, list[Any]]:
        """The lists that have one entry for each layer, by their keys.

        Older files state every how many layers attention is global; then the list is the one that the class
        makes of it.
        """
        trunk, loaded_config = trunk_config(self.config), load_text_config(self.config)
        lists = {key: trunk.get(key) or getattr(loaded_config, key, None) for key in self.KINDS}
        return {
            key: value
            for key, value in lists.items()
            if isinstance(value, list) and len(value) == self.count
        }

    def select(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the config of a model that has only these layers of the text trunk, in this order."""
        return with_trunk_config(self.config, dict(self._describe_layers(numbers)))

    def _describe_layers(self, numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
        """Yield the changed keys of the text trunk's config with their values."""
        trunk = trunk_config(self.config)
        yield self.count_key, len(numbers)
        for key, kinds in self.kinds.items():
            # A list of equal entries, which the class makes of the number of layers, stays unsaid.
            if trunk.get(key) is not None or len(set(kinds)) > 1:
                yield key, [kinds[number] for number in numbers]
        for key in _LAYER_NUMBERS:
            listed = trunk.get(key)
            if isinstance(listed, list):
                yield key, [place for place, number in enumerate(numbers) if number in listed]
