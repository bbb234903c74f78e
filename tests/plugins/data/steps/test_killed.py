"""A generation that dies ends, run again, in the bytes of one that did not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from emberge.cli.main import main
from emberge_data.steps.generate.chat_server import ChatServer

from tests.support.chat_server import Wrong, completion, queries_by_rule, serving_chat
from tests.support.handbook import write_handbook
from tests.support.killed import killed_when, run_command
from tests.support.result_folders import read_results

PARALLEL = 3


def rule(prompt: str) -> Wrong:
    """Answer after a moment, so that kills find requests on their way."""
    return Wrong(body=completion(queries_by_rule(prompt)), seconds=0.01)


@pytest.mark.slow
def test_a_generation_that_is_killed_ends_in_the_same_bytes_and_buys_no_kept_reply_twice(
    tmp_path: Path,
) -> None:
    """Of the requests that are sent again, none had a reply that was kept, and few were on their way."""
    pages = write_handbook(tmp_path / "docs", documents=24)
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "killed"
    with serving_chat(rule) as service:
        by = {"endpoint": service.url, "model": "m", "parallel": PARALLEL}
        step = {"documents": str(pages), "by": by}
        recipe.write_text(json.dumps({"steps": {"made": {"generate_queries": step}}}), "utf-8")
        reply_key = ChatServer(endpoint=service.url, model="m").reply_key
        assert main(run_command(recipe, tmp_path / "whole")) == 0
        half = len(service.asked) // 2
        service.asked.clear()
        assert killed_when(lambda: len(service.asked) >= half, main, run_command(recipe, out))
        time.sleep(0.1)  # the server still answers what was on its way
        before = [*service.asked]
        replies = out.rglob("replies/*/*.json")
        kept = {path.stem for path in replies if not path.name.startswith(".")}
        service.asked.clear()
        assert main(run_command(recipe, out)) == 0
    assert kept
    assert not [prompt for prompt in service.asked if reply_key(prompt) in kept]
    assert len([prompt for prompt in service.asked if prompt in before]) <= PARALLEL
    assert read_results(out) == read_results(tmp_path / "whole")
