"""Generations killed on the way: `python killed_generating.py ROOT DEATHS [adapt]`.

Queries are written and judged by a server of this process. With `adapt` the recipe is that of `emberge adapt`
on the documents, from the first request to the scores of a tiny model. Prints one JSON line for each death:
the moment, what differs from an unharmed run when the same command has run again, how many requests that were
kept were sent again, and how many others.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.support import tiny
from tests.support.chat_server import ChatService, Wrong, completion, queries_by_rule, serving_chat
from tests.support.handbook import write_handbook
from tests.support.killed_steps import KilledRecipe, contents, contents_without_times

PARALLEL = 3


def write_generation(documents: Path, server: dict[str, Any]) -> dict[str, Any]:
    """A recipe of the step alone."""
    step = {"documents": str(documents), "by": server, "judge": server}
    return {"steps": {"generated": {"generate_queries": step}}}


def write_adaptation(documents: Path, server: dict[str, Any]) -> dict[str, Any]:
    """The recipe that `emberge adapt` writes, with the server, for a tiny model that need not get better."""
    from emberge import load_plugins
    from emberge_adapt import AdaptRequest, prepare

    model = tiny.checkpoint(documents.parent / "bert")
    request = AdaptRequest(data=str(documents), model=str(model))
    recipe: dict[str, Any] = yaml.safe_load(prepare(request, load_plugins()).recipe_text)
    steps = recipe["steps"]
    steps["generated"]["generate_queries"] |= {"by": server, "judge": server}
    for name in ("train", "half"):
        if name in steps:
            training = steps[name]["train"]
            training["learning_rate"] = float(
                training["learning_rate"]
            )  # PyYAML takes 5e-5 for text
    steps["mined"]["mine_hard_negatives"]["margin"] = None  # to a random model, all texts are alike
    del steps["scores"]["evaluate"]["require"]
    del steps["report"]  # it tells how long everything took
    return {"seed": recipe["seed"], "steps": steps}


def rule(prompt: str) -> Wrong:
    """Answer after a moment, so that kills find requests on their way."""
    return Wrong(body=completion(queries_by_rule(prompt)), seconds=0.01)


def list_kept(out: Path) -> set[str]:
    """Return the keys of all replies that are kept."""
    return {path.stem for path in out.rglob("replies/*/*.json") if not path.name.startswith(".")}


def count_again(service: ChatService, before: list[str], kept: set[str]) -> dict[str, int]:
    """Count requests that were sent again: those whose reply was kept before, and others."""
    from emberge_data.steps.generate.chat_server import ChatServer
    from emberge_data.steps.generate.kept_replies import KeptReplies

    server = ChatServer(endpoint=service.url, model="m")
    keys = KeptReplies(Path())
    again = [prompt for prompt in service.asked if prompt in before]
    of_kept = [p for p in service.asked if keys.key(server.name_request(p)) in kept]
    return {"kept": len(of_kept), "on their way": len(again) - len(of_kept)}


def main(root: Path, deaths: int, kind: str) -> None:
    root.mkdir(parents=True)
    adapts = kind == "adapt"
    documents = write_handbook(root / "docs", documents=120 if adapts else 24)
    recipe = root / "recipe.yaml"
    draw = random.Random(2)
    with serving_chat(rule) as service:
        server = {"endpoint": service.url, "model": "m", "parallel": PARALLEL}
        content = (write_adaptation if adapts else write_generation)(documents, server)
        recipe.write_text(json.dumps(content), "utf-8")
        runs = KilledRecipe(recipe, root, contents_without_times if adapts else contents)
        for number in range(deaths):
            service.asked.clear()
            died = runs.die_in_turns(number, draw)
            time.sleep(0.1)  # the server still answers what was on its way
            before, kept = [*service.asked], list_kept(runs.out)
            service.asked.clear()
            ended = runs.run_again()
            again = count_again(service, before, kept)
            print(json.dumps({**died, **ended, "again": again, "kept": len(kept)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:] or ["generate"]))
