"""Vector indexes that survive a change of the model: what is translated, bridged, compared and refused.

A step or verb that reads, writes or compares the vectors of two models belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, Verb, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step] | str]:
    return {"translate": "emberge_index.translation.translate_step:Translate"}


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {}
