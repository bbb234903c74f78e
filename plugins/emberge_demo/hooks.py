"""Data without a download, from installed packages."""

from __future__ import annotations

from emberge import make_hook

register_steps = make_hook(stdlib_corpus="emberge_demo.stdlib_corpus:StdlibCorpus")
