"""Data without a download (from installed packages, or drawn) and controls: random towers, shuffled parts."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "drawn_media": "emberge_demo.drawn_media:DrawnMedia",
        "random_tower": "emberge_demo.random_tower:RandomTower",
        "shuffled_parts": "emberge_demo.shuffled_parts:ShuffledParts",
        "stdlib_corpus": "emberge_demo.stdlib_corpus:StdlibCorpus",
        "stdlib_tasks": "emberge_demo.stdlib_tasks:StdlibTasks",
        "stdlib_texts": "emberge_demo.stdlib_texts:StdlibTexts",
    }
