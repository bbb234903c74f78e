"""Passports of the models that steps leave."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from emberge import Artifact, EmbergeError, hookimpl

__all__ = ["step_finished"]

# Size of weights up to which a model is loaded once more for its canaries.
_SMALL = 2 << 30


@hookimpl
def step_finished(folder: Path, artifact: Artifact) -> None:
    """Write the passport of a model; its canaries too where the process has loaded what models need.

    A merge is done in less time than those imports take; `emberge space MODEL` adds canaries later.
    """
    if artifact.kind != "model":
        return
    from emberge import load_plugins

    from emberge_index.space.passport import passport_of, write_passport

    try:
        backbone = load_plugins().find("text_encoder", "backbone").type()
        if backbone.check(folder):
            return
        passport = passport_of(folder, backbone.dimension(folder))
        if "transformers" in sys.modules and _size(folder) <= _SMALL:
            from emberge_index.space.canaries import embed_canaries

            encoder = backbone.load(folder, device="cpu", dtype="float32")
            passport = replace(passport, canaries=embed_canaries(encoder))
        write_passport(folder, passport)
    except EmbergeError:
        return  # some other kind of model, such as a reranker, has no space


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
