"""The corpus of the demo: functions and docstrings of the standard library and of installed packages."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "stdlib_corpus": "emberge_demo.stdlib_corpus:StdlibCorpus",
        "stdlib_tasks": "emberge_demo.stdlib_tasks:StdlibTasks",
        "stdlib_texts": "emberge_demo.stdlib_texts:StdlibTexts",
    }
