"""The passport that goes with a model: its facts with every result, its canaries where it is published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import CheckpointError
from emberge.model_folder import Layout

from emberge_index.space.passport import PASSPORT, passport_of, passport_text

if TYPE_CHECKING:
    from emberge import Plugins


# Bytes of weights up to which a model that is published is loaded for its canaries. A larger one gets the
# facts alone, and `emberge space MODEL` embeds its canaries where there is room.
SMALL = 1 << 28


def result_passport(folder: Path) -> Mapping[str, str]:
    """Return the passport of a step's encoder, from its files: no model is loaded, and none is asked about.

    An adapter or a trunk alone embeds nothing, and a folder that is no encoder of texts has no space.
    """
    if not _has_space(folder):
        return {}
    try:
        return {PASSPORT: passport_text(passport_of(folder))}
    except CheckpointError:
        return {}


def published_passport(folder: Path, plugins: Plugins) -> Mapping[str, str]:
    """Return the passport of a model that is published, with canaries where it is small.

    Raises:
        PluginError: without a backbone that can load it.
        CheckpointError: for a model that cannot embed.
    """
    from emberge_index.space.one_space import ModelSpace

    weights = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    if weights > SMALL or not _has_space(folder):
        return {}
    space = ModelSpace(folder.name, folder, plugins.find("text_encoder", "backbone").type())
    return {PASSPORT: passport_text(space.with_canaries)}


def _has_space(folder: Path) -> bool:
    if (folder / "adapter_config.json").is_file():
        return False
    try:
        return not Layout.read(folder).bare
    except CheckpointError:
        return False
