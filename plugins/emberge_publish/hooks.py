"""Publishing of models with their cards on a hub: a step and a verb."""

from __future__ import annotations

from pathlib import Path

from emberge import make_hook
from emberge.plugin_verbs import Verb, VerbOption

register_steps = make_hook(publish="emberge_publish.publish_step:Publish")
register_verbs = make_hook(
    publish=Verb(
        group="publish",
        summary="publish a model on a hub with its card, after showing it and asking",
        examples="emberge publish --dry-run out/soup\n"
        "emberge publish out/soup me/soup\n"
        "emberge publish merged me/soup --private --licence apache-2.0\n"
        "emberge publish out/soup me/soup --replace --yes",
        options=(
            VerbOption("folder", "a step's result or merged model", "DIR", Path),
            VerbOption(
                "name", "its name on the hub; a dry run needs none", "OWNER/NAME", count="?"
            ),
            VerbOption(
                "--dry-run",
                "show files, licence and card; no log-in, no network, nothing is written",
            ),
            VerbOption("--private", "only you and your team see it"),
            VerbOption("--replace", "replace other files in an existing repository"),
            VerbOption("--licence", "in place of the one that the card states", "ID"),
            VerbOption("--yes", "do not ask"),
        ),
        run="emberge_publish.publish_verb:run_verb",
    )
)
