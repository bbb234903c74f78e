"""The passport of a model that a step has made, written before its folder is published."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import CheckpointError
from emberge.engine import read_layout

from emberge_index.space.one_space import Space
from emberge_index.space.passport import write_passport

if TYPE_CHECKING:
    from emberge import Plugins

__all__ = ["SMALL", "add_passport"]

# Bytes of weights up to which a model is loaded for its canaries. A larger one gets the facts alone: a merge
# that streams needs a fraction of its memory, and `emberge space MODEL` embeds them where there is room.
SMALL = 1 << 28


def add_passport(folder: Path, plugins: Plugins) -> None:
    """Write the passport of an encoder into its folder, with canaries where it is small and finite.

    An adapter or a trunk alone embeds nothing, and a folder that is no encoder of texts has no space.
    """
    if (folder / "adapter_config.json").is_file():
        return
    try:
        if read_layout(folder).bare:
            return
        space = Space(folder.name, folder, plugins.find("text_encoder", "backbone").type())
        passport = space.passport
    except CheckpointError:
        return
    if sum(file.stat().st_size for file in folder.rglob("*.safetensors")) <= SMALL:
        # The model is whole all the same; whoever asks for its canaries later is told what is wrong.
        with suppress(CheckpointError, OSError, RuntimeError, ValueError):
            passport = space.with_canaries
    write_passport(folder, passport)
