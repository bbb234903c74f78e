"""Components of the plugin, by the names that recipes use."""

from collections.abc import Mapping

from emberge import Loss, MergeStrategy, Step, hookimpl

from emberge_acme.keep_layers import KeepLayers
from emberge_acme.keep_norm import KeepNorm, KeepNormPlain
from emberge_acme.uniformity import Uniformity


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy]]:
    return {"keep_norm": KeepNorm, "keep_norm_plain": KeepNormPlain}


@hookimpl
def register_losses() -> Mapping[str, type[Loss]]:
    return {"uniformity": Uniformity}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    return {"keep_layers": KeepLayers}
