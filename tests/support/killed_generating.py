"""Generations killed on the way: `python killed_generating.py ROOT DEATHS`.

Queries are written and judged by a server of this process. Prints one JSON line for each death: the moment,
what differs from an unharmed run when the same command has run again, how many requests that were kept were
sent again, and how many others.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from tests.support.chat_server import ChatService, Wrong, completion, queries_by_rule, serving_chat
from tests.support.handbook import write_handbook
from tests.support.killed_steps import KilledRecipe

PARALLEL = 3
RECIPE = """
steps:
  generated:
    generate_queries:
      documents: {documents}
      by: &server {{endpoint: "{url}", model: m, parallel: {parallel}}}
      judge: *server
"""


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


def main(root: Path, deaths: int) -> None:
    root.mkdir(parents=True)
    documents = write_handbook(root / "docs", documents=24)
    recipe = root / "recipe.yaml"
    draw = random.Random(2)
    with serving_chat(rule) as service:
        text = RECIPE.format(documents=documents, url=service.url, parallel=PARALLEL)
        recipe.write_text(text, "utf-8")
        runs = KilledRecipe(recipe, root)
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
    main(Path(sys.argv[1]), int(sys.argv[2]))
