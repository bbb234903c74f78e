"""Reading of a base with an adapter as one model, without writing a tensor; loads no torch."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import as_row_shape
from emberge.errors import CheckpointError, EmbergeError
from emberge.merging.adapter_config import (
    AdapterConfig,
    describe_other_base,
    read_adapter_config,
    require_base,
)
from emberge.merging.apply_adapter import AdaptedSpec, Change, LowRank, MagnitudeScale
from emberge.model_folder import ADAPTER_WEIGHTS, Checkpoint, TrunkConfig
from emberge.tensor_files import TensorSpec, read_header
from emberge.tensor_names import HEAD, PEFT_PREFIX, TensorNames, modernise_name

_PICKLE_FILE = "adapter_model.bin"
_FACTOR_NAME = re.compile(
    r"(?P<module>.+)\.(?P<factor>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.(?!weight$)\w+)?(?:\.weight)?"
)
_COPY_NAME = re.compile(r"\.(?:base_layer|modules_to_save\.\w+)(?=\.)")
# Part of the names of unchanged copies of the base's tensors that peft saves with the trained ones.
_UNUSED_COPY_PART = ".original_module."
_EMBEDDING_FACTORS = {"lora_embedding_A": "lora_A", "lora_embedding_B": "lora_B"}


@dataclass
class AdaptedModule:
    """An adapter's tensors for one module of the model that it was trained on."""

    factors: dict[str, TensorSpec] = field(default_factory=dict)
    embeds: bool = False


@dataclass(frozen=True)
class Adapter:
    """An adapter's settings and tensors, from its config and header.

    The keys of `modules` are their names in the adapted model's class. `whole_tensors` are the tensors that
    the adapter contains in full: saved modules, biases, and copies of the base's tensors.
    """

    folder: Path
    config: AdapterConfig
    metadata: Mapping[str, str]
    modules: Mapping[str, AdaptedModule]
    whole_tensors: Mapping[str, TensorSpec]


def read_adapter(folder: Path) -> Adapter | None:
    """Read an adapter's config and header; None if there is a config and no weights.

    Raises:
        CheckpointError: if the adapter is missing, damaged or pickled, or cannot be merged.
    """
    config = read_adapter_config(folder)
    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        if (folder / _PICKLE_FILE).is_file():
            raise CheckpointError(
                f"{folder / _PICKLE_FILE}: is a pickle, which can run any code when it is opened; convert it "
                f"safely with `emberge safetensors {folder}`"
            )
        return None
    specs, metadata = read_header(file)
    return Adapter(folder, config, metadata, *_sort_tensors(config, specs))


def _sort_tensors(
    config: AdapterConfig, specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, AdaptedModule], dict[str, TensorSpec]]:
    """Return the factors of an adapter by module, and its whole tensors by name."""
    modules: dict[str, AdaptedModule] = {}
    whole_tensors: dict[str, TensorSpec] = {}
    for stored_name, spec in specs.items():
        if _UNUSED_COPY_PART in stored_name:
            continue
        name = stored_name.removeprefix(PEFT_PREFIX)
        if match := _FACTOR_NAME.fullmatch(name):
            module = modules.setdefault(match["module"], AdaptedModule())
            module.factors[_EMBEDDING_FACTORS.get(match["factor"], match["factor"])] = spec
            module.embeds |= match["factor"] in _EMBEDDING_FACTORS
            continue
        plain_name = _COPY_NAME.sub("", name)
        if "lora_" in plain_name:
            raise CheckpointError(
                f"{config.path.parent}: the tensor '{spec.name}' is of a kind that is not supported; fold "
                "the adapter into its base with the library that trained it and merge the whole model"
            )
        if plain_name == name or plain_name not in whole_tensors:
            whole_tensors[plain_name] = spec
    return modules, whole_tensors


class AdaptedCheckpoint(Checkpoint):
    """A base with an adapter, as one model folder.

    A folder that sentence-transformers saved with an adapter inside has its own modules, prompts and
    tokenizer, and takes weights and config from the base. Any other adapter brings a tokenizer at most. The
    config has the rows of the adapted embedding. A head that is tied to the embedding stays so.
    """

    def __init__(self, base: Path, adapter: Path) -> None:
        self.base: Checkpoint = Checkpoint(base)
        self.adapter = Checkpoint(adapter)
        super().__init__(adapter if self.adapter.modules else base)

    @functools.cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        if self.folder == self.base.folder:
            return self.base.specs
        modules = tuple(filter(None, self.base.folder_by_prefix))
        trunk = {n: s for n, s in self.base.specs.items() if not n.startswith(modules)}
        return trunk | self.read_specs(filter(None, self.folder_by_prefix))

    @property
    def has_weights(self) -> bool:
        return self.base.has_weights

    @property
    def weight_bytes(self) -> int:
        file = self.adapter.trunk / ADAPTER_WEIGHTS
        return self.base.weight_bytes + (file.stat().st_size if file.is_file() else 0)

    @functools.cached_property
    def metadata(self) -> Mapping[str, str]:
        return self.base.metadata

    @property
    def tokenizer_folder(self) -> Path:
        folder = self.adapter.tokenizer_folder
        return folder if self.adapter.has_tokenizer else self.base.tokenizer_folder

    @property
    def has_tokenizer(self) -> bool:
        return self.adapter.has_tokenizer or self.base.has_tokenizer

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        config, names = self.base.config, None
        with suppress(EmbergeError):  # reading the names raises it
            names = self.find_names() if self.has_weights else None
        if names is None or not config:
            return config
        rows = [count_rows(one) for one in (self.base.tensor_names, names)]
        if rows[0] == rows[1]:
            return config
        return TrunkConfig(config).change({"vocab_size": rows[1]})

    @functools.cached_property
    def tensor_names(self) -> TensorNames:
        if self._adapted_names is None:
            raise CheckpointError(f"{self.adapter.trunk}: has no {ADAPTER_WEIGHTS}; get the file")
        return self._adapted_names

    def find_names(self) -> TensorNames | None:
        """Return the base's tensors with the adapter's changes; None if the adapter's weights are missing.

        Raises:
            CheckpointError: if the adapter has another base, or cannot be merged.
        """
        return self._adapted_names

    @functools.cached_property
    def _adapted_names(self) -> TensorNames | None:
        adapter = read_adapter(self.adapter.trunk)
        if adapter is None:
            return None
        require_base(adapter.config, adapter.metadata, self.base.tensor_names, self.base)
        modules = tuple(filter(None, self.folder_by_prefix))
        names = TensorNames.of(
            self.specs, modules=modules, config=self.base.config, folder=self.folder
        )
        names = dataclasses.replace(names, untied_copies=self.base.tensor_names.untied_copies)
        return _AdapterApplier(names, self, adapter).apply()


def count_rows(names: TensorNames) -> int:
    """Return the number of rows of the input embedding; 0 without one."""
    embedding = names.find_embedding()
    return embedding.shape[0] if embedding is not None else 0


def warn_of_adapter(name: str, checkpoint: Checkpoint | None) -> Iterator[str]:
    """Yield warnings of a model's adapter: another base, no tokenizer of new rows, a head left out."""
    if not isinstance(checkpoint, AdaptedCheckpoint):
        return
    with suppress(EmbergeError):  # reading the model raises it
        adapter = read_adapter(checkpoint.adapter.trunk)
        if adapter is None or not checkpoint.has_weights:
            return
        warning = describe_other_base(adapter.config, adapter.metadata, checkpoint.base.folder)
        yield from [warning] if warning else []
        old, new = (
            count_rows(names) for names in (checkpoint.base.tensor_names, checkpoint.tensor_names)
        )
        if new > old and not checkpoint.adapter.has_tokenizer:
            yield (
                f"'{name}' has {new} rows of the embedding and its base {old}; if the others are trained "
                f"tokens, put the tokenizer that has them into {checkpoint.adapter.folder}"
            )
        trained = {*adapter.modules, *(n.removesuffix(".weight") for n in adapter.whole_tensors)}
        if "lm_head" in trained and checkpoint.base.tensor_names.find_substitute(HEAD) is not None:
            yield (
                f"'{name}' has a trained lm_head, which its base ties to the embedding: they stay tied, and "
                "the trained lm_head is left out; to keep it, fold the adapter into an untied base with peft"
            )


def open_model(folder: Path, adapter: Path | None = None) -> Checkpoint:
    """Open a model's folder, with an adapter on it if there is one.

    Raises:
        CheckpointError: if a folder is missing.
    """
    return Checkpoint(folder) if adapter is None else AdaptedCheckpoint(folder, adapter)


class _AdapterApplier:
    """A builder of the adapted model: it applies an adapter's changes to the tensors of its base."""

    def __init__(self, names: TensorNames, checkpoint: AdaptedCheckpoint, adapter: Adapter) -> None:
        self.names, self.base, self.adapter = names, checkpoint.base.folder, adapter
        self.specs = dict(names.specs)
        # Adapters of a class with a tied head may change it by its name.
        tied_head = names.find_substitute(HEAD)
        if tied_head is not None:
            self.specs.setdefault(HEAD, tied_head.with_name(HEAD))
        known = dataclasses.replace(names, specs=dict(self.specs))
        self.base_names = AdapterNames(known, checkpoint, adapter.folder.name, self.base.name)

    def apply(self) -> TensorNames:
        """Return the base's tensors with the adapter's whole tensors, and with its changes of others."""
        for name, spec in self.adapter.whole_tensors.items():
            base_name = self._find_base_name(name)
            self.specs[base_name] = _cast_saved(self.specs[base_name], spec)
        for name, module in self.adapter.modules.items():
            self._adapt_module(name, module)
        self.base_names.require_one_prefix()
        if self.names.find_substitute(HEAD) is not None:
            del self.specs[HEAD]
            if HEAD in self.names.specs:
                self.specs[HEAD] = self.names.specs[HEAD]
        return dataclasses.replace(self.names, specs=self.specs)

    def _find_base_name(self, name: str) -> str:
        """Return the base's name of an adapter's tensor; refuse a tensor that the base lacks."""
        base_name = self.base_names.find_name(name)
        if base_name is None:
            raise self._build_error(
                f"it changes '{name}', which {self.base.name} does not have; name the base that it "
                f"was trained on{f', {self.adapter.config.base}' if self.adapter.config.base else ''}"
            )
        return base_name

    def _adapt_module(self, name: str, module: AdaptedModule) -> None:
        """Replace a module's weight by one that is changed while it is read."""
        base_name = self._find_base_name(f"{name}.weight")
        origin = self.specs[base_name]
        if not origin.mergeable:
            raise self._build_error(
                f"'{name}' is {origin.dtype} in the base, which cannot be adapted"
            )
        low_rank = self._read_low_rank(name, module, origin)
        magnitude = self._read_magnitude(name, module, origin, low_rank.transposed)
        changes: tuple[Change, ...] = (low_rank, *([magnitude] if magnitude is not None else []))
        shape, dtype = origin.shape, origin.dtype
        self.specs[base_name] = AdaptedSpec(
            origin.name, shape, dtype, origin=origin, changes=changes
        )

    def _read_low_rank(self, name: str, module: AdaptedModule, origin: TensorSpec) -> LowRank:
        """Return the addition of a module's two factors, whose shapes must fit the base's tensor."""
        a, b = module.factors.get("lora_A"), module.factors.get("lora_B")
        if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
            raise self._build_error(f"'{name}' lacks one of its two factors; get the adapter again")
        config, rank = self.adapter.config, a.shape[0]
        if rank != config.rank_of(name):
            raise self._build_error(
                f"'{name}' has rank {rank} and its config says {config.rank_of(name)}; get both files again"
            )
        outputs, inputs = b.shape[0], as_row_shape(a.shape)[1]
        stored = as_row_shape(origin.shape)
        transposed = (
            module.embeds
            or (config.transposed and outputs == inputs)
            or stored != (outputs, inputs)
        )
        expected = (inputs, outputs) if transposed else (outputs, inputs)
        if b.elements != outputs * rank or stored != expected:
            raise self._build_error(
                f"'{name}' has factors of shape {list(a.shape)} and {list(b.shape)}, and the base's "
                f"{list(origin.shape)} cannot take them; name the base that it was trained on"
            )
        return LowRank(a, b, config.scale_of(name, rank), transposed)

    def _read_magnitude(
        self, name: str, module: AdaptedModule, origin: TensorSpec, transposed: bool
    ) -> MagnitudeScale | None:
        """Return the scaling of a DoRA module's outputs; None for an adapter without magnitudes."""
        m = module.factors.get("lora_magnitude_vector")
        if (m is not None) != self.adapter.config.magnitudes:
            has, says = ("has", "no DoRA") if m is not None else ("lacks", "DoRA")
            raise self._build_error(f"'{name}' {has} magnitudes and its config says {says}")
        if m is None:
            return None
        outputs = as_row_shape(origin.shape)[1 if transposed else 0]
        if m.elements != outputs:
            raise self._build_error(f"'{name}' has {m.elements} magnitudes for {outputs} outputs")
        return MagnitudeScale(m, transposed)

    def _build_error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.adapter.folder}: {message}")


def _cast_saved(base_spec: TensorSpec, saved: TensorSpec) -> TensorSpec:
    """Return the adapter's own copy of a tensor, under the base's name and in its dtype."""
    if saved.dtype == base_spec.dtype or not base_spec.mergeable:
        return saved.with_name(base_spec.name)
    return AdaptedSpec(base_spec.name, saved.shape, base_spec.dtype, origin=saved, changes=())


# How a whole SentenceTransformer numbers its modules.
_MODULE = re.compile(r"(\d+)\.(?:auto_model\.|model\.)?(?=\D)")


class AdapterNames:
    """A lookup from an adapter's tensor names to those of its base.

    An adapter may have been trained on a class with other names than the base's (`model.layers.0…` for
    `layers.0…`), or inside a SentenceTransformer (`0.auto_model.encoder…`). The text before the base's name
    is removed if it is the same in all names.
    """

    def __init__(self, names: TensorNames, checkpoint: Checkpoint, label: str, base: str) -> None:
        self._label, self._base = label, base
        self._modules = checkpoint.modules
        self._known = {modernise_name(spec.name): name for name, spec in names.specs.items()}
        self._known.update({name: name for name in names.specs})
        self._leads: dict[str, str] = {}

    def find_name(self, name: str) -> str | None:
        """Return the canonical name of a tensor; None if the base has no such tensor."""
        name = modernise_name(self._strip_module_number(name))
        words = name.split(".")
        for start in range(len(words)):
            base_name = self._known.get(".".join(words[start:]))
            if base_name is not None:
                self._leads.setdefault("".join(f"{w}." for w in words[:start]), name)
                return base_name
        return None

    def require_one_prefix(self) -> None:
        """Refuse an adapter whose names match the base's under several prefixes.

        Raises:
            CheckpointError: if they do; the message has two of the prefixes.
        """
        longest = max(self._leads, key=len, default="")
        for lead, name in self._leads.items():
            if not longest.startswith(lead):
                raise CheckpointError(
                    f"{self._label}: '{name}' and '{self._leads[longest]}' lie in different parts of the "
                    f"model that it was trained on, and {self._base} has one; name the base of the adapter"
                )

    def _strip_module_number(self, name: str) -> str:
        """Return a name without its module's number; modules after the first get their folder as a prefix."""
        match = _MODULE.match(name)
        if match is None or int(match[1]) >= max(1, len(self._modules)):
            return name
        number, inner_name = int(match[1]), name[match.end() :]
        return (
            inner_name
            if number == 0
            else f"{self._modules[number].path}.{name[len(match[1]) + 1 :]}"
        )
