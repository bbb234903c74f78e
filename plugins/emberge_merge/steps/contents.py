"""What models contain, for a check that holds statistics files against them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from emberge import ModelRef, Stage
from emberge.engine import MergeInput, MergeRequest

__all__ = ["with_contents"]


def with_contents(
    request: MergeRequest, models: Sequence[ModelRef], base: ModelRef | None
) -> MergeRequest:
    """The request with fingerprints of the models that lie in folders here, if any statistics are named.

    A check reads no weights; this is the exception, at the speed of the disk, because a file of another
    model would else be found only after everything before the merge was done. `models` are the
    references of the request's inputs.
    """
    chains: tuple[tuple[Stage, ...], ...] = request.chains
    if not any(not f.text.startswith("$") for c in chains for link in c for f in link.files()):
        return request
    inputs = [_hashed(m, r) for m, r in zip(request.inputs, models, strict=True)]
    origin = request.base
    if origin is not None and base is not None:
        origin = _hashed(origin, base)
    return dataclasses.replace(request, inputs=tuple(inputs), base=origin)


def _hashed(model: MergeInput, reference: ModelRef) -> MergeInput:
    from emberge import EmbergeError
    from emberge.engine import Checkpoint, model_fingerprint

    here = reference.text.startswith((".", "/", "~")) and model.folder is not None
    if not here or model.fingerprint:
        return model
    assert model.folder is not None
    try:
        if not Checkpoint(model.folder).has_weights:
            return model
        content = model_fingerprint(model.folder, adapter=model.adapter)
    except EmbergeError:
        return model  # what is wrong with it is said elsewhere
    return dataclasses.replace(model, fingerprint=content)
