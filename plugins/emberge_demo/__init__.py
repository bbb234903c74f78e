"""Data without a download: functions and docstrings of installed packages, drawn images, synthetic sounds."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_demo.drawn_media import DrawnMedia
    from emberge_demo.stdlib_corpus import StdlibCorpus
    from emberge_demo.stdlib_tasks import StdlibTasks
    from emberge_demo.stdlib_texts import StdlibTexts

    return {
        "drawn_media": DrawnMedia,
        "stdlib_corpus": StdlibCorpus,
        "stdlib_tasks": StdlibTasks,
        "stdlib_texts": StdlibTexts,
    }
