"""Backbones of whole models of sentence-transformers: no remote code, pickles or random weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import Backbone, CheckpointError, Encoder, EncoderFacts, TextLength
from emberge.architectures import silence_transformers
from emberge.model_folder import Checkpoint, TextLimit, read_object

from emberge_encoder.layout import require_stock_modules
from emberge_encoder.text.tokenizer import require_vocabulary
from emberge_encoder.text.trunk_weights import (
    refuse_foreign_classes,
    refuse_pickled_module,
    refuse_pickles,
)


@dataclass(frozen=True, kw_only=True)
class StockBackbone(Backbone):
    """Backbone whose encoder is a whole model of sentence-transformers.

    A subclass describes a folder by `read_facts`, and loads the library's model by `load_model`.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    """Prompts by name (`query`, `document`), in addition to those of the folder."""
    max_length: TextLength | None = None
    """Tokens of a text, or of a pair, at most; by default the folder's own limit."""

    def describe(self, checkpoint: Path, *, predicts_tokens: bool = False) -> EncoderFacts:
        try:
            trunk = find_trunk(checkpoint)
            config = read_trunk_config(trunk)
            TextLimit.read(trunk).require(self.max_length)
            return self.read_facts(checkpoint, config)
        except CheckpointError as error:
            return EncoderFacts(problems=(str(error),))

    def read_facts(self, checkpoint: Path, config: Mapping[str, Any]) -> EncoderFacts:
        """Return the encoder's facts, always with its dimension, from the folder and its trunk's config.

        Raises:
            CheckpointError: if no such encoder can be loaded from the folder.
        """
        raise NotImplementedError

    def load_model(self, checkpoint: Path, facts: EncoderFacts, device: str, dtype: str) -> Any:
        """Return the library's model of a folder, on a device.

        Raises:
            CheckpointError: if it cannot be loaded.
        """
        raise NotImplementedError

    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts_tokens: bool = False
    ) -> Encoder:
        from emberge_encoder.stock.stock_model import PairModel, StockModel

        facts = self.describe(checkpoint)
        if facts.problems:
            raise CheckpointError(facts.problems[0])
        model = self.load_model(checkpoint, facts, device, dtype)
        model.prompts |= self.prompts
        model.to(device)
        encoder_class = PairModel if self.kind == "pair_score" else StockModel
        limit = TextLimit.read(find_trunk(checkpoint))
        return encoder_class(model, checkpoint, facts, limit, self.max_length)


def find_trunk(checkpoint: Path) -> Path:
    """Return the folder of the transformer.

    Raises:
        CheckpointError: if a module needs remote code, or there is an encoder for each kind of text.
    """
    require_stock_modules(checkpoint)
    modules = Checkpoint(checkpoint).modules
    return checkpoint / modules[0].path if modules else checkpoint


def read_trunk_config(trunk: Path) -> Mapping[str, Any]:
    """Return the config of a transformer, whose class transformers or a plugin defines.

    Raises:
        CheckpointError: if there is none, or its class needs remote code.
    """
    path = trunk / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing")
    config = read_object(path)
    refuse_foreign_classes(path, config)
    return config


def has_architecture(config: Mapping[str, Any], ending: str) -> bool:
    """Return whether a config names a class whose name ends in `ending`."""
    names = config.get("architectures")
    return isinstance(names, list) and any(str(name).endswith(ending) for name in names)


def load_stock_model(
    stock_class: Callable[..., Any],
    folder: Path,
    device: str,
    dtype: str,
    fresh: Collection[str] = (),
) -> Any:
    """Return a model that a class of sentence-transformers loads from a local folder, with all its weights.

    `fresh` are beginnings of names of weights that may be missing in the folder, and are then new.

    Raises:
        CheckpointError: if the class refuses the folder, or weights are pickles or missing.
    """
    import torch

    trunk = find_trunk(folder)
    refuse_pickles(trunk)
    for module in Checkpoint(folder).modules[1:]:
        refuse_pickled_module(folder / module.path)
    try:
        with silence_transformers(), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # new weights are the same in each load
            model = stock_class(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"dtype": getattr(torch, dtype), "use_safetensors": True},
            )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError) as error:
        raise CheckpointError(f"{folder}: cannot be loaded: {error}") from error
    require_vocabulary(model.tokenizer, folder)
    _require_weights(model, folder, fresh)
    longest = TextLimit.read(trunk).longest
    for module in model.modules():
        if longest is not None and hasattr(module, "auto_model"):
            module.max_seq_length = min(module.max_seq_length or longest, longest)
    return model


def _require_weights(model: Any, folder: Path, fresh: Collection[str]) -> None:
    """Refuse a model with weights that its folder lacks, since the library fills them with random numbers."""
    specs = Checkpoint(find_trunk(folder)).specs
    stored = {name.split(".", 1)[-1] for name in specs} | {*specs}
    trunk = next(module.auto_model for module in model.modules() if hasattr(module, "auto_model"))
    tied = getattr(trunk, "_tied_weights_keys", None) or ()
    for name, _ in trunk.named_parameters():
        known = name in stored or name.split(".", 1)[-1] in stored or name in tied
        if not known and not name.startswith(tuple(fresh)) and "pooler" not in name:
            raise CheckpointError(
                f"{folder}: has no {name}, so it would be random; the weights and config.json are not of one "
                "model"
            )
