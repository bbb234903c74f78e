"""Data without a download: functions and docstrings of installed packages, drawn images, synthetic sounds."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "drawn_media": "emberge_demo.drawn_media:DrawnMedia",
        "probe_sets": "emberge_demo.probe.probe_sets:ProbeSets",
        "stdlib_corpus": "emberge_demo.stdlib_corpus:StdlibCorpus",
        "stdlib_tasks": "emberge_demo.stdlib_tasks:StdlibTasks",
        "stdlib_texts": "emberge_demo.stdlib_texts:StdlibTexts",
    }
