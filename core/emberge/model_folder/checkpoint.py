"""Model folders, read from names, configs and headers alone; importing this loads no torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.errors import CheckpointError
from emberge.model_folder.folder_files import (
    ADAPTER_CONFIG,
    HUB_ID,
    OTHER_FORMAT_REASON,
    TOKENIZER_FILES,
    find_rule,
    read_model_json,
    read_object,
    read_object_if_any,
    resolve_file,
)
from emberge.model_folder.st_layout import ModuleFolder, read_modules, require_inner_name
from emberge.tensor_files import WEIGHTS_FILE, RemoteFile, TensorSpec, read_header
from emberge.tensor_names import TIED_NAMES, TensorNames

if TYPE_CHECKING:
    from emberge.tensor_files import TensorReader

_PICKLE_PATTERNS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
# Beginnings of the names of files of a training's state, which have the same endings and no weights.
_STATE_BEGINNINGS = ("optimizer", "scheduler", "rng_state", "scaler", "training_args")
# Bytes compared in each of as many places of two tensors that may be copies.
_SAMPLED_BYTES, _SAMPLES = 4096, 64
# Parts of the names of tensors that only quantised models have.
_QUANTISED_PARTS = frozenset(
    {
        *("qweight", "qzeros", "weight_packed", "weight_scale", "weight_scale_inv"),
        *("weight_scale_2", "weight_zero_point", "absmax", "quant_map", "quant_state", "SCB"),
    }
)
_TOKENIZER_PATTERNS = (
    *(name for name in TOKENIZER_FILES if not name.startswith("chat_template")),
    *("*.tiktoken", "*.spm", "*.bpe", "*.model", "bpe.codes", "*tokenizer_config.json"),
)


def _find_pickles(folder: Path) -> Iterator[Path]:
    """Yield a folder's files of pickled weights, without those of a training's state."""
    for pattern in _PICKLE_PATTERNS:
        paths = sorted(folder.glob(pattern))
        yield from (path for path in paths if not path.name.startswith(_STATE_BEGINNINGS))


def describe_other_format(folder: Path) -> str | None:
    """Return an error that names a folder's unsupported format and the remedy; None if it is supported."""
    if (folder / ADAPTER_CONFIG).is_file():
        base = read_object_if_any(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
        of_base = f" of '{base}', which is not here" if base else ""
        adapter_path = folder if folder.is_absolute() else f"./{folder}"
        base_path = base if base and HUB_ID.fullmatch(str(base)) else "./BASE"
        return (
            f"{folder}: is an adapter{of_base} ({ADAPTER_CONFIG}); name it with its base, as "
            f"{base_path}+{adapter_path}"
        )
    for path in sorted(folder.iterdir()):
        rule = find_rule(path.name, is_folder=path.is_dir())
        if rule is not None and rule.reason == OTHER_FORMAT_REASON:
            return (
                f"{folder}: has only {OTHER_FORMAT_REASON} ({path.name}), which cannot be merged; get the "
                "model's safetensors"
            )
    unknown_files = sorted(p.name for p in folder.glob("*.safetensors"))
    if unknown_files:
        return (
            f"{folder}: has {unknown_files[0]}, but neither model.safetensors nor an index of it; "
            "get the missing file, or rename this one if it is the whole model"
        )
    return None


class Checkpoint:
    """A model folder in Hugging Face or SentenceTransformers layout.

    Files are read on first use, and weights never: `specs` come from the files' headers. Weights of further
    modules (`2_Dense/model.safetensors`) appear as `2_Dense.linear.weight`.

    Raises:
        CheckpointError: if the folder is missing.
    """

    base: Checkpoint | None = None
    """The checkpoint that an adapter changes; None for a model without an adapter."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder}: there is no such model folder")

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r})"

    @functools.cached_property
    def modules(self) -> tuple[ModuleFolder, ...]:
        """The modules that modules.json lists; none for a plain transformers folder."""
        return tuple(module for module in self.all_modules if not module.is_in_route)

    @functools.cached_property
    def all_modules(self) -> tuple[ModuleFolder, ...]:
        """The modules, each router followed by the modules of its routes."""
        return read_modules(self.folder)

    @functools.cached_property
    def trunk(self) -> Path:
        """The folder of the transformer: the first module's, or the folder itself."""
        folders = [self.folder / m.path for m in self.all_modules if not m.is_router]
        if self.all_modules and not self.all_modules[0].is_router:
            folders = folders[:1]
        # Of a router's routes the transformer's, as there may be a mere table of embeddings before it.
        for folder in folders:
            if "model_type" in read_object_if_any(folder / "config.json"):
                return folder
        return folders[0] if folders else self.folder

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """Content of the transformer's config.json; empty if there is none."""
        path = self.trunk / "config.json"
        return read_object(path) if path.is_file() else {}

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer's files: the transformer's, or the whole model's."""
        in_trunk = any((self.trunk / name).is_file() for name in TOKENIZER_FILES)
        return self.trunk if in_trunk else self.folder

    @property
    def has_tokenizer(self) -> bool:
        """True if files of a tokenizer exist, even empty ones."""
        folders = dict.fromkeys([self.trunk, self.folder])
        return any(any(f.glob(pattern)) for f in folders for pattern in _TOKENIZER_PATTERNS)

    @functools.cached_property
    def folder_by_prefix(self) -> Mapping[str, str]:
        """Map from a prefix of tensor names to its folder, relative to the model; the trunk's is ""."""
        trunk = self.trunk.relative_to(self.folder).as_posix()
        folder_by_prefix = {"": "" if trunk == "." else trunk}
        for module in self.all_modules:
            if module.path != folder_by_prefix[""] and _list_weight_files(
                self.folder / module.path
            ):
                folder_by_prefix[f"{module.path}."] = module.path
        return folder_by_prefix

    def locate_in_trunk(self, name: str) -> str:
        """Return the path, in the model folder, of a file of the transformer such as `config.json`."""
        trunk = self.folder_by_prefix[""]
        return f"{trunk}/{name}" if trunk else name

    @property
    def has_weights(self) -> bool:
        """True if the folder has weights and not only metadata."""
        folders = [self.trunk, *(self.folder / m.path for m in self.all_modules)]
        return any(_list_weight_files(f) or any(_find_pickles(f)) for f in folders)

    @property
    def is_adapter(self) -> bool:
        """True if the transformer's folder has an adapter and no weights; other modules may have weights."""
        trunk = self.trunk
        has_adapter = (trunk / ADAPTER_CONFIG).is_file()
        return has_adapter and not (_list_weight_files(trunk) or any(_find_pickles(trunk)))

    @functools.cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor by name, from headers.

        Raises:
            CheckpointError: if weight files are missing, pickled, truncated, inconsistent or quantised.
        """
        specs = self.read_specs(self.folder_by_prefix)
        for module in self.all_modules:
            folder = self.folder / module.path
            pickle = next(_find_pickles(folder), None) if module.path else None
            if pickle is not None and not _list_weight_files(folder):
                raise self._build_pickle_error(pickle)
        scheme = self.config.get("quantization_config") or self.config.get("compression_config")
        signs = [str(scheme.get("quant_method", "unknown"))] if isinstance(scheme, Mapping) else []
        signs += (
            f"'{name}' of {spec.dtype}"
            for name, spec in specs.items()
            if spec.dtype.startswith("float8") or not _QUANTISED_PARTS.isdisjoint(name.split("."))
        )
        if signs:
            raise CheckpointError(
                f"{self.folder}: its weights are quantised ({signs[0]}), and are not read; get the model in "
                "float32, bfloat16 or float16"
            )
        return specs

    def read_specs(self, prefixes: Iterable[str]) -> dict[str, TensorSpec]:
        """Return the tensors under prefixes of `folder_by_prefix`, by name, from headers.

        Raises:
            CheckpointError: if weight files are missing, pickled, truncated or inconsistent.
        """
        specs: dict[str, TensorSpec] = {}
        for prefix in prefixes:
            folder = self.folder / self.folder_by_prefix[prefix]
            files = _list_weight_files(folder)
            if not files:
                if pickle := next(_find_pickles(folder), None):
                    raise self._build_pickle_error(pickle)
                other_format = describe_other_format(folder)
                raise CheckpointError(
                    other_format
                    or f"{folder}: there is no {WEIGHTS_FILE} here; is this a model folder?"
                )
            for spec in (spec for file in files for spec in read_header(file)[0].values()):
                name = prefix + spec.name
                if name in specs:
                    raise CheckpointError(
                        f"{spec.file}: tensor '{name}' is also in {specs[name].file}; get the files again"
                    )
                specs[name] = spec.with_name(name) if prefix else spec
            index = folder / f"{WEIGHTS_FILE}.index.json"
            is_sharded = index.is_file() and RemoteFile.find(folder / WEIGHTS_FILE) is None
            for name in _read_weight_map(index) if is_sharded else ():
                if prefix + name not in specs:
                    raise CheckpointError(
                        f"{index}: names the tensor '{name}', which no file has; get all files again"
                    )
        return specs

    def _build_pickle_error(self, pickle: Path) -> CheckpointError:
        return CheckpointError(
            f"{pickle}: is a pickle, which can run any code when it is opened; convert it safely with "
            f"`emberge safetensors {self.folder}`"
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the files of weights, those of further modules included."""
        folders = self.folder_by_prefix.values()
        files = (file for inner in folders for file in _list_weight_files(self.folder / inner))
        return sum(file.stat().st_size for file in files)

    @functools.cached_property
    def tensor_names(self) -> TensorNames:
        """The tensors under their canonical names.

        Raises:
            CheckpointError: as for `specs`; also if two tensors have one name.
        """
        modules = tuple(filter(None, self.folder_by_prefix))
        names = TensorNames.of(self.specs, modules=modules, config=self.config, folder=self.folder)
        # Samples of numbers are read only if a copy is stored.
        stored_copies = [name for name in TIED_NAMES if name in names.specs]
        untied_copies = frozenset(name for name in stored_copies if _is_untied(names, name))
        return replace(names, untied_copies=untied_copies)

    def find_names(self) -> TensorNames | None:
        """Return `tensor_names`; None for a model with an adapter whose weights are missing."""
        return self.tensor_names

    def require_weights(self) -> None:
        """Require weights that can be read.

        Raises:
            CheckpointError: as for `specs`; the message says what the folder has in their place.
        """
        _ = self.specs  # reading them raises it

    @functools.cached_property
    def metadata(self) -> Mapping[str, str]:
        """The metadata in the header of the trunk's first weight file."""
        files = _list_weight_files(self.trunk)
        return read_header(files[0])[1] if files else {}

    def find_bad_tensor(self) -> str | None:
        """Return the name of the first tensor with NaN or infinite values; None if all are finite."""
        import torch

        with self.open_reader() as reader:
            for name, spec in self.specs.items():
                values = torch.empty(spec.elements if spec.mergeable else 0)
                reader.read(spec, 0, values)
                if not values.isfinite().all():
                    return name
        return None

    def open_reader(self) -> TensorReader:
        """Open the weights for reading by rows."""
        from emberge.tensor_files import TensorReader

        return TensorReader()


def _list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: the only file, or the files in its index.

    For a file on a server, the path of its note (a local stand-in for it) is returned.
    """
    single, index = RemoteFile.find(folder / WEIGHTS_FILE), folder / f"{WEIGHTS_FILE}.index.json"
    if single is not None or not index.is_file():
        return [single] if single is not None else []
    weights = _read_weight_map(index)
    files = []
    for name in sorted(set(weights.values())):
        require_inner_name(index, name)
        file = RemoteFile.find(folder / name)
        if file is None:
            raise CheckpointError(f"{index}: names the file '{name}', which is missing; get it")
        resolve_file(file, folder)
        files.append(file)
    return files


def _read_weight_map(index: Path) -> dict[str, str]:
    content = read_model_json(index)
    weights = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(v, str) for v in weights.values()):
        raise CheckpointError(f"{index}: has no weight_map of tensors to files; get it again")
    return weights


def _is_untied(names: TensorNames, name: str) -> bool:
    """Return whether a model stores a copy with other numbers than its original, by a sample."""
    original = None if names.tied is False else names.find_original(name)
    copy = names.specs[name]
    if original is None or original.name == copy.name or original.dtype != copy.dtype:
        return False
    can_be_read = all(
        type(spec) is TensorSpec and not RemoteFile.is_note(spec.file) for spec in (copy, original)
    )
    return can_be_read and not _have_same_sample(copy, original)


def _have_same_sample(first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether samples of two tensors of one size, taken at even distances, have equal bytes."""
    size = min(_SAMPLED_BYTES, first.nbytes)
    step = max(1, (first.nbytes - size) // (_SAMPLES - 1))
    with first.file.open("rb") as first_file, second.file.open("rb") as second_file:
        for start in range(0, first.nbytes - size + 1, step):
            first_file.seek(first.offset + start)
            second_file.seek(second.offset + start)
            if first_file.read(size) != second_file.read(size):
                return False
    return True
