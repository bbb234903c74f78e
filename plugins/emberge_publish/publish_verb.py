"""The verb `publish`: shows the planned upload, asks and uploads; or shows it without a network."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from emberge import Plugins, RecipeError
from emberge.plugin_verbs import ask_user

from emberge_publish.prepare import prepare_publication
from emberge_publish.publication import CARD, PublishOptions


def run_verb(options: argparse.Namespace, plugins: Plugins) -> int:  # noqa: ARG001 - a verb's form
    """Publish a model's folder under a name, or show what would be published, and return the exit code."""
    publish_options = PublishOptions(
        name=_choose_name(options),
        private=options.private,
        replace=options.replace,
        licence=options.licence,
    )
    publication = prepare_publication(options.folder, publish_options)
    if options.dry_run:
        card = publication.files[CARD]
        assert isinstance(card, bytes)  # it was completed
        print("\n".join([*publication.list_lines(), "", f"{CARD}:"]))
        print("\n".join(f"  {line}".rstrip() for line in card.decode().splitlines()))
        print("\nnothing was uploaded: this was a dry run")
        return 0
    repository = publication.read_repository()
    print("\n".join(publication.list_lines(repository)), flush=True)
    publication.require_free(repository)
    if publication.equals(repository):
        print("nothing to upload: the hub has exactly these files")
        return 0
    if not options.yes and not ask_user(f"publish {publish_options.name}", "nothing was uploaded"):
        print("nothing was uploaded")
        return 0
    published = publication.upload(repository)
    print(f"published: {published.url} at {published.commit[:12]}")
    return 0


def _choose_name(options: argparse.Namespace) -> str:
    """Return the model's name on the hub; a dry run without one gets a name made of the folder's."""
    if options.name:
        return str(options.name)
    if not options.dry_run:
        raise RecipeError(
            f"{options.folder}: give the model's name on the hub (emberge publish {options.folder} "
            "OWNER/NAME), or --dry-run to see what would be uploaded"
        )
    folder: Path = options.folder
    return "your-name/" + (re.sub(r"[^\w.-]+", "-", folder.absolute().name).lstrip("-.") or "model")
