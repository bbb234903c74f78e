"""Generations killed on the way: `python killed_generating.py ROOT DEATHS`.

Queries are written and judged by a server of this process. Prints one JSON line for each death: the moment,
what differs from an unharmed run when the same command has run again, how many requests that were kept were
sent again, and how many others.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from pathlib import Path

from tests.support.chat_server import ChatService, Wrong, completion, queries_by_rule, serving_chat
from tests.support.fuse import DEATH, Fuse
from tests.support.handbook import write_handbook
from tests.support.killed_merge import digest
from tests.support.killed_mining import killed_command
from tests.support.killed_run import command, warm

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


def contents(out: Path) -> dict[str, str]:
    """Return the files of the result; of artifact.json what does not depend on the time it took."""
    result = (out / "generated").resolve()
    record = json.loads((result / "artifact.json").read_text())
    del record["seconds"]
    return {**digest(result), "artifact.json": json.dumps(record)}


def list_kept(out: Path) -> set[str]:
    """The keys of all replies that are kept."""
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
    recipe, whole, place = root / "recipe.yaml", root / "whole", root / "place"
    draw = random.Random(2)
    with serving_chat(rule) as service:
        text = RECIPE.format(documents=documents, url=service.url, parallel=PARALLEL)
        recipe.write_text(text, "utf-8")
        whole.mkdir()
        warm(["run", str(recipe), "--out", str(root / "warm")])
        began = time.monotonic()
        assert command(["run", str(recipe), "--out", str(whole / "out")], Fuse()) == 0
        seconds = time.monotonic() - began
        expected = contents(whole / "out")
        calls = json.loads((whole / "calls").read_text())
        for number in range(deaths):
            place.mkdir()
            service.asked.clear()
            line = ["run", str(recipe), "--out", str(place / "out")]
            if number % 2:
                at = draw.randrange(1, len(calls) + 1)
                assert command(line, Fuse(at=at)) == DEATH
                died = {"at": at, "of": len(calls), "call": calls[at - 1]}
            else:
                after = draw.uniform(0, seconds)
                died = {"after": after, "of": seconds, "killed": killed_command(after, line)}
            time.sleep(0.1)  # the server still answers what was on its way
            before, kept = [*service.asked], list_kept(place / "out")
            service.asked.clear()
            code = command(line)
            again = count_again(service, before, kept)
            found = contents(place / "out")
            other = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
            facts = {"code": code, "other": other, "again": again, "kept": len(kept)}
            print(json.dumps({**died, **facts}), flush=True)
            shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
