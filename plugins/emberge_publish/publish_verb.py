"""The verb `publish`: it shows what would be uploaded, asks, uploads, and reads it back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from emberge import Plugins, RecipeError

from emberge_publish.prepare import prepare
from emberge_publish.publication import Choices, Publication


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Publish a model's folder under a name and return the exit code."""
    choices = Choices(
        name=options.name,
        private=options.private,
        replace=options.replace,
        licence=options.licence,
        licences=_read_licences(options.licence_of),
    )
    found = prepare(options.folder, choices, plugins, options.inputs)
    found.repository.require_token()
    remote = found.repository.look()
    planned = found.planned(remote)
    print("\n".join(found.lines(planned, remote)), flush=True)
    found.require_free(planned)
    if remote.commit and all(one.state == "same" for one in planned):
        print("nothing to upload: the hub has exactly these files")
        _write_board(found, options, remote.commit)
        return 0
    if not options.yes and not _ask_user(f"publish {found.repository.name}"):
        print("nothing was uploaded")
        return 0
    done = found.upload(planned, remote)
    print(f"published: {done.url} at {done.commit[:12]}")
    _write_board(found, options, done.commit)
    return 0


def _write_board(found: Publication, options: argparse.Namespace, commit: str) -> None:
    if options.mteb is not None:
        for file in found.write_board(options.mteb, commit):
            print(f"written: {options.mteb / file}")


def _read_licences(given: Sequence[str]) -> dict[str, str]:
    """Return licences by parent, of words like `./ft-legal=apache-2.0`."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, licence = text.rpartition("=")
        if not (name and equals and licence):
            raise RecipeError(f"--licence-of {text}: write it as PARENT=ID")
        found[name] = licence
    return found


def _ask_user(what: str) -> bool:
    """Ask the user and return whether the answer is yes.

    Raises:
        RecipeError: when there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise RecipeError(
            "nothing was uploaded: there is no terminal to ask at; --yes does not ask"
        )
    try:
        return input(f"{what}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
