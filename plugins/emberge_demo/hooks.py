"""Data without a download, from installed packages."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {"stdlib_corpus": "emberge_demo.stdlib_corpus:StdlibCorpus"}
