"""The verb `space`: a model's passport, two spaces, a server or stored vectors beside a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from emberge import RecipeError
from emberge.files import write_text

from emberge_index.space import ModelSpace, compare_spaces, exit_code_of, space_at

if TYPE_CHECKING:
    from emberge import Plugins

DIFFERENT = 4
"""Exit code of vectors that are not the model's."""
_SERVER_OPTIONS = ("api", "served_as", "key", "send_prompts")
_CHECK_OPTIONS = ("queries", "candidates", "ranges", "sample")


class _Outcome(Protocol):
    def lines(self) -> Iterator[str]: ...

    def plain(self) -> dict[str, Any]: ...


def run(options: argparse.Namespace, plugins: Plugins) -> int:
    """Do what the options ask for, print the outcome, and return the exit code.

    One model gets its passport: it goes to the file of --json, or is the space.json of a folder that the user
    named. Two models, or their passports, are compared. A model is compared with the server of --endpoint, or
    with stored --vectors of --texts.
    """
    _refuse_lonely_options(options)
    first = space_at(options.first, options, plugins)
    if options.endpoint is not None:
        return _check_endpoint(first, options, plugins)
    if options.second is None and options.texts is not None and options.vectors is not None:
        return _check_stored(first, options, plugins)
    if options.second is None:
        _refuse(options, ("texts", "vectors"), "is for stored vectors; give --texts and --vectors")
        print("\n".join(first.write_passport_file(options.json)))
        return 0
    second = space_at(options.second, options, plugins)
    comparison = compare_spaces(first, second, texts=options.texts, vectors=options.vectors)
    _tell(comparison, options)
    return exit_code_of(comparison.verdict)


def _check_endpoint(space: ModelSpace, options: argparse.Namespace, plugins: Plugins) -> int:
    from emberge_index.served import VectorServer, check_endpoint

    candidates = [space_at(name, options, plugins) for name in options.candidates]
    name = options.served_as or space.name
    server = VectorServer(options.endpoint, name, options.api, options.key, options.timeout)
    check = check_endpoint(
        space,
        server,
        candidates=candidates,
        queries=options.queries,
        sends_prompts=options.send_prompts,
    )
    _tell(check, options)
    return 0 if check.diagnosis.is_same else DIFFERENT


def _check_stored(space: ModelSpace, options: argparse.Namespace, plugins: Plugins) -> int:
    from emberge_index.served import check_stored

    check = check_stored(
        space,
        options.texts,
        options.vectors,
        candidates=[space_at(name, options, plugins) for name in options.candidates],
        ranges=options.ranges,
        sample=options.sample or 1000,
        queries=options.queries,
    )
    _tell(check, options)
    return DIFFERENT if check.odd else 0


def _tell(outcome: _Outcome, options: argparse.Namespace) -> None:
    print("\n".join(outcome.lines()))
    if options.json is not None:
        write_text(options.json, json.dumps(outcome.plain(), indent=1, ensure_ascii=False) + "\n")
        print(f"written: {options.json}")


def _refuse_lonely_options(options: argparse.Namespace) -> None:
    """Refuse options that say nothing of what the others ask for."""
    if options.endpoint is not None:
        _refuse(options, ("second", "texts", "vectors", "ranges", "sample"), "is not for a server")
        return
    _refuse(options, _SERVER_OPTIONS, "is for a server; name its address by --endpoint")
    if options.second is not None or options.vectors is None:
        words = "is for a server or for stored vectors; give --endpoint, or --texts and --vectors"
        _refuse(options, _CHECK_OPTIONS, words)


def _refuse(options: argparse.Namespace, names: tuple[str, ...], words: str) -> None:
    used = [name for name in names if getattr(options, name)]
    if used:
        name = "the second model" if used[0] == "second" else f"--{used[0].replace('_', '-')}"
        raise RecipeError(f"{name} {words}")
