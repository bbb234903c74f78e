"""The verb `publish`: shows the planned upload, asks, uploads and verifies; or shows it without a network."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from emberge import Plugins, RecipeError

from emberge_publish.ancestors import skip_card
from emberge_publish.prepare import prepare
from emberge_publish.publication import Choices, Publication
from emberge_publish.training_summary import list_statement_faults


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Publish a model's folder under a name, or show what would be published, and return the exit code."""
    choices = Choices(
        name=options.name or _choose_dry_name(options),
        private=options.private,
        replace=options.replace,
        licence=options.licence,
        licences=_read_licences(options.licence_of),
        statements=_read_statements(options.state),
    )
    if options.dry_run:
        preview = prepare(options.folder, choices, plugins, options.inputs, skip_card)
        print("\n".join(preview.preview()))
        print("\nnothing was uploaded: this was a dry run")
        return 0
    publication = prepare(options.folder, choices, plugins, options.inputs)
    publication.repository.require_token()
    remote = publication.repository.read_state()
    planned = publication.planned(remote)
    print("\n".join(publication.lines(planned, remote)), flush=True)
    publication.require_free(planned)
    if remote.commit and all(file.state == "same" for file in planned):
        print("nothing to upload: the hub has exactly these files")
        _write_board(publication, options, remote.commit)
        return 0
    if not options.yes and not _ask_user(f"publish {publication.repository.name}"):
        print("nothing was uploaded")
        return 0
    published = publication.upload(planned, remote)
    print(f"published: {published.url} at {published.commit[:12]}")
    _write_board(publication, options, published.commit)
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


def _write_board(publication: Publication, options: argparse.Namespace, commit: str) -> None:
    if options.mteb is not None:
        for file in publication.write_board(options.mteb, commit):
            print(f"written: {options.mteb / file}")


def _read_licences(assignments: Sequence[str]) -> dict[str, str]:
    """Return licences by parent, read from texts such as `./ft-legal=apache-2.0`."""
    licences: dict[str, str] = {}
    for text in assignments:
        name, equals, licence = text.rpartition("=")
        if not (name and equals and licence):
            raise RecipeError(f"--licence-of {text}: write it as PARENT=ID")
        licences[name] = licence
    return licences


def _read_statements(assignments: Sequence[str]) -> dict[str, str]:
    """Return statements by section, read from texts such as `1.1=Acme, Berlin`."""
    statements: dict[str, str] = {}
    for text in assignments:
        section, equals, statement = text.partition("=")
        if not (equals and statement.strip()):
            raise RecipeError(
                f"--state {text}: write it as SECTION=TEXT, such as 1.1='Acme, Berlin'"
            )
        statements[section] = statement
    if fault := next(list_statement_faults(statements), None):
        raise RecipeError(f"--state: {fault}")
    return statements


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
