"""The hooks of a plugin, as a table of contents.

An implementation is a function in the plugin's module that is marked `@hookimpl`. It takes only the arguments
that it needs, by name. `register_*` hooks return types by name, and may be written as a table,
`register_losses = make_hook(infonce=InfoNCE)`. A type may be given by its place, `"my_package.trim:Trim"`,
and is then imported when a recipe names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pluggy

if TYPE_CHECKING:
    from emberge import contracts
    from emberge.architectures import Architecture
    from emberge.plugin_verbs import Verb

WantedFiles = Literal["all", "metadata", "ranges"]
"""Files of a model that are needed: all, without weights, or all with weights that are read by parts."""
hookspec = pluggy.HookspecMarker("emberge")
hookimpl = pluggy.HookimplMarker("emberge")


def make_hook(**additions: Any) -> Callable[[], Mapping[str, Any]]:
    """Return an implementation of a `register_*` hook that returns these additions by name."""
    return hookimpl(lambda: additions)


# ── components ──────────────────────────────────────────────────────────────────────────────────


@hookspec
def register_samplers() -> Mapping[str, type[contracts.Sampler] | str]:
    """Add samplers, which choose training examples and group them into batches."""


@hookspec
def register_losses() -> Mapping[str, type[contracts.Loss] | type[contracts.TokenLoss] | str]:
    """Add losses, pure functions of embeddings or of hidden states."""


@hookspec
def register_backbones() -> Mapping[str, type[contracts.Backbone] | str]:
    """Add backbones, which turn a checkpoint into an encoder."""


@hookspec
def register_merge_transforms() -> Mapping[str, type[contracts.MergeTransform] | str]:
    """Add merge transforms, links of a merge chain that turn N models into M."""


@hookspec
def register_merge_strategies() -> Mapping[
    str, type[contracts.MergeStrategy] | contracts.ChainSpec | str
]:
    """Add merge strategies, links of a merge chain that turn N models into one, or names for whole chains."""


@hookspec
def register_steps() -> Mapping[str, type[contracts.Step] | str]:
    """Add kinds of step, which read folders and fill one folder."""


@hookspec
def register_evaluators() -> Mapping[str, type[contracts.Evaluator] | str]:
    """Add evaluators, which give models scores on tasks."""


@hookspec
def register_readers() -> Mapping[str, type[contracts.Reader] | str]:
    """Add readers, which turn a kind of data file into rows."""


@hookspec
def register_launchers() -> Mapping[str, type[contracts.Launcher] | str]:
    """Add launchers, which run ready steps side by side."""


@hookspec
def register_verbs() -> Mapping[str, Verb]:
    """Add verbs of the command line, each one call; emberge's own and another plugin's names are refused."""


# ── models and recipes ──────────────────────────────────────────────────────────────────────────────


@hookspec
def register_architectures() -> Mapping[str, Architecture]:
    """Add model classes by model type, the `model_type` of config.json, for loading and checking models.

    The classes' modules are imported when a model of the type is loaded. A model type that transformers or
    another plugin has is refused.
    """


@hookspec(firstresult=True)
def locate_model(reference: str, revision: str | None, files: WantedFiles) -> Path | None:
    """Find a model that is not a local folder (`owner/name`, `pkg:module`, your own scheme).

    Return a folder, or None if your plugin does not handle such references. With `files="metadata"`, only
    configs and tokenizer files are needed. With `files="ranges"`, tensors are read one by one, so notes of
    weights (`ServerFile.build_note`) are enough. Raise `CheckpointError` if your plugin handles the reference
    and the model does not exist, and `ConnectionError` if it could not be searched for.
    """


@hookspec(firstresult=True)
def read_recipe(text: str, path: Path | None) -> str | None:
    """Turn another tool's recipe into ours, in YAML, or return None if your plugin does not know the format.

    `path` is the file that the text comes from; relative references start at its folder. If a recipe of your
    format is wrong, raise `RecipeError` with `path:line`.
    """


# ── events ──────────────────────────────────────────────────────────────────────────────────────


@hookspec
def hear_event(event: contracts.Event) -> None:
    """Hear what happens in a run: `StepStarted`, `MetricLogged`, `StepFinished` and the other events."""
