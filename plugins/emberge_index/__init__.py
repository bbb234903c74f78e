"""Vector indexes that survive a change of the model: what is translated, bridged, compared and refused.

A step or verb that reads, writes or compares the vectors of two models belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, Verb, hookimpl

from emberge_index.space.options import add_space_options, add_threshold_options
from emberge_index.space.write_on_finish import step_finished

__all__ = ["register_steps", "register_verbs", "step_finished"]  # hooks


@hookimpl
def register_steps() -> Mapping[str, type[Step] | str]:
    return {"translate": "emberge_index.translation.translate_step:Translate"}


@hookimpl
def register_verbs() -> Mapping[str, Verb]:
    return {
        "space": Verb(
            summary="tell whether two models' vectors may be mixed, translated, or neither",
            examples="emberge space ./old ./new\n"
            "emberge space ./old ./new --texts texts.txt --vectors index.npy --json space.json\n"
            "emberge space kept/space.json ./new\n"
            "emberge space ./model   (writes its passport)",
            add_options=add_space_options,
            run="emberge_index.space.one_space:run",
            machine=True,
        ),
        "thresholds": Verb(
            summary="map thresholds of cosine from an old model to a new one at equal false positives",
            examples="emberge thresholds ./old ./new --at 0.7,0.8\n"
            "emberge thresholds ./old ./new --texts texts.txt --json thresholds.json",
            add_options=add_threshold_options,
            run="emberge_index.thresholds.one_map:run",
            machine=True,
        ),
    }
