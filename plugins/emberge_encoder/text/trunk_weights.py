"""A transformer's weights: loading without gaps, freezing of parts, and saving under original names."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, suggest
from emberge.architectures import find_config_class, has_config_class, silence_transformers
from emberge.wording import join_some

if TYPE_CHECKING:
    from torch import Tensor

# Buffers that old releases wrote and new ones compute.
BUFFER_NAMES = ("position_ids", "inv_freq", "masked_bias")


def load_trunk(folder: Path, config: Mapping[str, Any], dtype: str) -> Any:
    """Return a transformers model of a config and the weights in `folder`, without its unused pooler.

    Raises:
        CheckpointError: if weights are pickled, missing, unused or misshapen, or the model needs remote code.
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    classes = config.get("architectures") or ()
    is_encoder = any(str(name).endswith("EncoderModel") for name in classes)
    has_decoder = is_encoder or config.get("is_encoder_decoder")
    loader = AutoModelForTextEncoding if has_decoder else AutoModel
    model, _ = load_weights(loader, folder, config, dtype)
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        # No embedding depends on the pooler: as an unused parameter it would only leave ranks out of step.
        # Saving carries it over from the source.
        model.pooler = None
    return model


def load_weights(
    loader: Any, folder: Path, config: Mapping[str, Any], dtype: str
) -> tuple[Any, Mapping[str, Any]]:
    """Return the model that a loader of transformers makes, and its report of missing weights.

    The transformer is complete; weights of a head may be missing.

    Raises:
        CheckpointError: as `load_trunk` does.
    """
    import torch

    refuse_pickles(folder)
    built = build_config(folder, config)
    try:
        with silence_transformers():
            model, report = loader.from_pretrained(
                str(folder),
                config=built,
                dtype=getattr(torch, dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `_refuse_gaps` names them
                local_files_only=True,
                trust_remote_code=False,
            )
    except Exception as error:  # each format and architecture fails in its own way
        raise CheckpointError(f"{folder}: cannot be loaded: {_take_first_line(error)}") from error
    _refuse_gaps(folder, model, report)
    model.config.use_cache = False
    return model, report


def refuse_pickles(folder: Path) -> None:
    """Refuse a model whose only weights are in a pickle.

    Raises:
        CheckpointError: if they are; the message has the command that converts them.
    """
    if list(folder.glob("*.safetensors")):
        return
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        raise CheckpointError(
            f"{folder}: its weights are a pickle, which can run code; convert them with "
            f"`emberge safetensors {folder}`"
        )
    raise CheckpointError(f"{folder}: holds no weights (*.safetensors)")


def refuse_pickled_module(folder: Path) -> None:
    """Refuse a stock module whose weights are a pickle.

    Raises:
        CheckpointError: if they are; the message has the command that converts them, or the missing file.
    """
    # Without this one file the library unpickles pytorch_model.bin.
    if not (folder / "model.safetensors").is_file() and list(folder.glob("*.bin")):
        refuse_pickles(folder)
        raise CheckpointError(
            f"{folder}: has no model.safetensors, the weights of a module; get it"
        )


def refuse_foreign_classes(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a config whose model class neither transformers nor a plugin defines.

    Nomic's mixture of experts has the model type of a dense class of transformers. That class would ignore
    all experts and use random weights instead.

    Raises:
        CheckpointError: if neither defines it; the message names the class.
    """
    if config.get("model_type") == "nomic_bert" and config.get("num_experts"):
        raise CheckpointError(
            f"{path}: is Nomic's mixture of {config['num_experts']} experts, which needs code of Nomic's "
            "that is not run; transformers' nomic_bert is another, dense model. Upcycle the dense model "
            "without 'export' for one that loads"
        )
    kind = config.get("model_type")
    if not has_config_class(kind):
        named = join_some([str(name) for name in config.get("architectures") or ["…"]])
        subject = f"model type '{kind}'" if kind else f"class {named}, and no model type is given"
        code_note = (
            "its code lies beside the weights and is not run" if "auto_map" in config else ""
        )
        raise CheckpointError(
            f"{path}: transformers has no {subject}, and no plugin adds it"
            + (code_note and f"; {code_note}")
        )


def build_config(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return transformers' config object of a config's dictionary.

    Raises:
        CheckpointError: if the model needs remote code, or transformers refuses a value.
    """
    kind = str(config.get("model_type"))
    config_class = find_config_class(kind)
    if config_class is None:
        raise CheckpointError(
            f"{folder}: transformers has no model type '{kind}' without remote code"
        )
    try:
        return config_class.from_dict(dict(config))
    except Exception as error:  # each class refuses values in its own way
        raise CheckpointError(f"{folder}/config.json: {_take_first_line(error)}") from error


def _refuse_gaps(folder: Path, model: Any, report: Mapping[str, Any]) -> None:
    """Refuse weights that lack a tensor of the transformer or have an unknown or misshapen tensor."""
    for name, shape, needed in sorted(report["mismatched_keys"]):
        raise CheckpointError(
            f"{folder}: '{name}' has the shape {[*shape]}, and by config.json it has {[*needed]}; the "
            "weights and config.json are not of one model"
        )
    trunk = model.base_model
    prefix = f"{model.base_model_prefix}."
    missing = sorted(
        name
        for name in report["missing_keys"]
        if not _is_pooler(name) and (trunk is model or name.startswith(prefix))
    )
    if missing:
        raise CheckpointError(
            f"{folder}: lacks {join_some(missing, 1)}; the weights and config.json are not of one model"
        )
    child_names = {name for name, _ in trunk.named_children()}
    unused_names = sorted(
        name
        for name in report["unexpected_keys"]
        if name.removeprefix(prefix).partition(".")[0] in child_names
        and not name.endswith(BUFFER_NAMES)
        and not _is_pooler(name)
    )
    if unused_names:
        raise CheckpointError(
            f"{folder}: has {join_some(unused_names, 1)}, which the model of its config.json does not know"
        )


def _is_pooler(name: str) -> bool:
    """Return whether a tensor belongs to a pooler, which no embedding depends on."""
    return "pooler" in name.split(".")


def _take_first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)


def save_trunk(model: Any, source: Path, target: Path, frozen: Sequence[str] = ()) -> None:
    """Write the model's weights under the names of the source checkpoint, with all its other tensors.

    The result has the same set of tensors as the checkpoint (poolers, language heads, buffers that old
    releases wrote), so that everything trained from the checkpoint can be merged with it. Trained tensors
    have the model's dtype; tensors of `frozen` parts are copied from the source byte for byte.
    """
    from huggingface_hub import save_torch_state_dict

    with (
        tempfile.TemporaryDirectory(dir=target, prefix=".weights-") as staging,
        silence_transformers(),
    ):
        model.save_pretrained(staging, max_shard_size="1TB")
        trained_tensors = read_tensors(Path(staging))
        source_tensors = read_tensors(source)
        # transformers leaves out tensors that share their values with others; the source's copies are old.
        tied_names = [name for name in model.all_tied_weights_keys if name in source_tensors]
        state = model.state_dict() if tied_names else {}
        trained_tensors |= {name: state[name] for name in tied_names}
        prefix, frozen_prefixes = f"{model.base_model_prefix}.", tuple(f"{p}." for p in frozen)
        named = dict(source_tensors)
        for name, tensor in trained_tensors.items():
            if name.removeprefix(prefix).startswith(frozen_prefixes):
                continue
            spellings = (name, prefix + name, name.removeprefix(prefix))
            named[next((s for s in spellings if s in source_tensors), name)] = tensor
        save_torch_state_dict(
            {name: tensor.contiguous() for name, tensor in sorted(named.items())},
            target,
            max_shard_size="5GB",
            filename_pattern="model{suffix}.safetensors",
        )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder's safetensors files by name, mapped rather than read."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def freeze(trunk: Any, parts: Sequence[str], folder: Path, *, has_head: bool) -> None:
    """Freeze parts of a transformer, so that they get no gradient and no optimiser state.

    Raises:
        CheckpointError: if the transformer lacks a part, or nothing is left to train: no part, no head.
    """
    modules = {name: module for name, module in trunk.named_modules() if name}
    top = [name for name, _ in trunk.named_children()]
    for part in parts:
        if part not in modules:
            raise CheckpointError(
                f"{folder}: freeze names '{part}', which the model does not have{suggest(part, top)}; its "
                f"parts are {', '.join(top)}"
            )
        modules[part].requires_grad_(False)
    if set(top) <= set(parts) and not has_head:
        raise CheckpointError(
            f"{folder}: freeze names every part of the model, so nothing is left to train"
        )
