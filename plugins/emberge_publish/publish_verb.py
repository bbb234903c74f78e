"""The verb `publish`: shows the planned upload, asks and uploads; or shows it without a network."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from emberge import Plugins, RecipeError

from emberge_publish.prepare import prepare
from emberge_publish.publication import CARD, Choices


def run(options: argparse.Namespace, plugins: Plugins) -> int:  # noqa: ARG001 - a verb's form
    """Publish a model's folder under a name, or show what would be published, and return the exit code."""
    choices = Choices(
        name=options.name or _choose_dry_name(options),
        private=options.private,
        replace=options.replace,
        licence=options.licence,
    )
    publication = prepare(options.folder, choices)
    if options.dry_run:
        card = publication.files[CARD]
        assert isinstance(card, bytes)  # prepare completes it
        print("\n".join([*publication.lines(), "", f"{CARD}:"]))
        print("\n".join(f"  {line}".rstrip() for line in card.decode().splitlines()))
        print("\nnothing was uploaded: this was a dry run")
        return 0
    remote = publication.read_remote()
    print("\n".join(publication.lines(remote)), flush=True)
    publication.require_free(remote)
    if publication.is_in(remote):
        print("nothing to upload: the hub has exactly these files")
        return 0
    if not options.yes and not _ask_user(f"publish {choices.name}"):
        print("nothing was uploaded")
        return 0
    published = publication.upload(remote)
    print(f"published: {published.url} at {published.commit[:12]}")
    return 0


def _choose_dry_name(options: argparse.Namespace) -> str:
    """Return a name for the card of a dry run, made of the folder's name.

    Raises:
        RecipeError: if this is no dry run, which needs the model's real name.
    """
    if not options.dry_run:
        raise RecipeError(
            f"{options.folder}: give the model's name on the hub (emberge publish {options.folder} "
            "OWNER/NAME), or --dry-run to see what would be uploaded"
        )
    folder: Path = options.folder
    return "your-name/" + (re.sub(r"[^\w.-]+", "-", folder.absolute().name).lstrip("-.") or "model")


def _ask_user(question: str) -> bool:
    """Return whether the user answers yes on the terminal.

    Raises:
        RecipeError: if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise RecipeError(
            "nothing was uploaded: there is no terminal to ask at; --yes does not ask"
        )
    try:
        return input(f"{question}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
