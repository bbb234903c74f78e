"""Publishing of models on a hub with their cards."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from emberge import hookimpl
from emberge.plugin_verbs import Verb


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"publish": "emberge_publish.publish_step:Publish"}


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "publish": Verb(
            summary="publish a model on a hub with its card, after showing it and asking",
            examples="emberge publish --dry-run out/soup\n"
            "emberge publish out/soup me/soup\n"
            "emberge publish merged me/soup --private --licence apache-2.0\n"
            "emberge publish out/soup me/soup --replace --yes",
            add_options=_add_publish_options,
            run="emberge_publish.publish_verb:run",
        )
    }


def _add_publish_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a step's result or merged model")
    parser.add_argument(
        "name", nargs="?", metavar="OWNER/NAME", help="its name on the hub; a dry run needs none"
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--dry-run",
        action="store_true",
        help="show files, licence and card; no log-in, no network, nothing is written",
    )
    parser.add_argument("--private", action="store_true", help="only you and your team see it")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace the other files of a repository that is there",
    )
    parser.add_argument("--licence", metavar="ID", help="in place of the one that the card states")
    ends.add_argument("--yes", action="store_true", help="do not ask")
