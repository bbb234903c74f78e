"""Models outside local folders: on a hub, in packages, at an address (`owner/name`, `pkg:x`, `s3://x/y`)."""

from __future__ import annotations

from pathlib import Path

from emberge import hookimpl, make_hook
from emberge.hookspecs import WantedFiles
from emberge.plugin_verbs import Verb, VerbOption

register_verbs = make_hook(
    safetensors=Verb(
        summary="convert a model's pickled weights to safetensors, without running what is in the pickle",
        examples="emberge safetensors ./old_model",
        options=(VerbOption("folder", "the model's folder", "DIR", Path),),
        run="emberge_hub.pickles:run_verb",
    )
)


@hookimpl
def locate_model(reference: str, revision: str | None, files: WantedFiles) -> Path | None:
    """Return the folder of `pkg:module`, of a name on a hub, or of an address; None for other references."""
    if reference.startswith("pkg:"):
        from emberge_hub.installed_package import find_in_package

        return find_in_package(reference.removeprefix("pkg:"), revision)
    if "://" in reference:
        from emberge_hub.model_address import fetch_from_address

        return fetch_from_address(reference, revision, files)
    from emberge.model_folder import HUB_NAME

    if HUB_NAME.fullmatch(reference):
        from emberge_hub.hub import fetch_from_hub

        return fetch_from_hub(reference, revision, files)
    return None
