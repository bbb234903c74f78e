"""A plugin as a bare file: a model type of its own, and nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl
from emberge.architectures import Architecture

MODULE = "tests.support.tiny_architecture"


@hookimpl
def register_architectures() -> Mapping[str, Architecture]:
    return {
        "acme_mixer": Architecture(
            config=f"{MODULE}:MixerConfig",
            model=f"{MODULE}:MixerModel",
            masked_lm=f"{MODULE}:MixerForMaskedLM",
        )
    }
