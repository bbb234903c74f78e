"""The corpus of the demo: functions and docstrings of the standard library and of installed packages."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_demo.stdlib_corpus import StdlibCorpus
    from emberge_demo.stdlib_tasks import StdlibTasks
    from emberge_demo.stdlib_texts import StdlibTexts

    return {
        "stdlib_corpus": StdlibCorpus,
        "stdlib_tasks": StdlibTasks,
        "stdlib_texts": StdlibTexts,
    }
