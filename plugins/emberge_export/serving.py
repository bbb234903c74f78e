"""Requirements of two servers, text-embeddings-inference and vLLM, on a model's files.

Both read classic SentenceTransformers files; each has its own list of architectures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.model_folder import Checkpoint, Layout, read_modules, read_object

# Model types that text-embeddings-inference names as supported.
_TEI_TYPES = frozenset(
    {
        *("bert", "camembert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert"),
        *("nomic_bert", "gte", "new", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"),
    }
)
_TEI_POOLING = frozenset({"cls", "mean", "lasttoken", "last"})
_CLASSIC = "sentence_transformers.models."
# Keys of config.json that both servers read for every model.
_FIELDS = ("architectures", "model_type", "hidden_size", "num_hidden_layers", "vocab_size")
_LENGTH = "max_position_embeddings"


def serving_lines(folder: Path) -> tuple[list[str], list[str]]:
    """Return (lines on what servers can use in a model's folder, lines on what they lack).

    Raises:
        CheckpointError: if the folder is not a model.
    """
    checkpoint = Checkpoint(folder)
    tei = [*_list_for_both(checkpoint), *_list_for_tei(checkpoint)]
    vllm = [*_list_for_both(checkpoint), *_list_for_vllm(checkpoint)]
    lines = [
        f"{name}: {'lacks ' + '; '.join(lacks) if lacks else 'has what it needs'}"
        for name, lacks in (("text-embeddings-inference", tei), ("vLLM", vllm))
    ]
    if not any(module.kind == "Normalize" for module in checkpoint.modules):
        lines.append(
            "the model has no Normalize module: text-embeddings-inference normalises all the same, unless a "
            "request has normalize: false"
        )
    missing_files = [
        f"servers need {requirement}" for requirement in dict.fromkeys(_list_for_both(checkpoint))
    ]
    missing_files += [
        f"text-embeddings-inference needs {requirement}"
        for requirement in _list_for_tei(checkpoint)
    ]
    missing_files += [f"vLLM needs {requirement}" for requirement in _list_for_vllm(checkpoint)]
    return lines, missing_files


def _list_for_both(checkpoint: Checkpoint) -> Iterator[str]:
    config = checkpoint.config
    for name in _FIELDS:
        if config.get(name) is None and _find_text_config(config).get(name) is None:
            yield f"'{name}' in {checkpoint.in_trunk('config.json')}"
    if not (checkpoint.trunk / "tokenizer.json").is_file():
        yield f"{checkpoint.in_trunk('tokenizer.json')}, a fast tokenizer"
    if checkpoint.trunk != checkpoint.folder:
        yield (
            f"the transformer's files in the model's own folder; they are in {checkpoint.parts['']}/"
        )
    for module in checkpoint.modules:
        if module.type and not module.type.startswith(_CLASSIC):
            yield f"the classic name {_CLASSIC}{module.kind} in modules.json, not {module.type}"


def _list_for_tei(checkpoint: Checkpoint) -> Iterator[str]:
    kind = str(checkpoint.config.get("model_type", ""))
    if kind and kind not in _TEI_TYPES:
        yield f"an architecture that it knows; '{kind}' is not on its list, but ONNX of it may do"
    if (
        checkpoint.config.get(_LENGTH) is None
        and _find_text_config(checkpoint.config).get(_LENGTH) is None
    ):
        yield f"'{_LENGTH}' in {checkpoint.in_trunk('config.json')}"
    yield from _check_pooling(checkpoint)


def _check_pooling(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the requirement for the pooling's config file, if it is missing."""
    layout = Layout.read(checkpoint.folder)
    modules = read_modules(checkpoint.folder)
    pooling = next((module for module in modules if module.kind == "Pooling"), None)
    if pooling is None:
        yield "a Pooling module, or --pooling on its command line"
        return
    config = read_object(checkpoint.folder / pooling.path / "config.json")
    flags = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    if pooling.path != "1_Pooling":
        yield f"the pooling in 1_Pooling, not {pooling.path}"
    if len(flags) != 1:
        yield "one pooling_mode_… that is true in 1_Pooling/config.json"
    elif not _TEI_POOLING.intersection(layout.pooling):
        yield f"pooling by mean, first or last token; this model has {', '.join(layout.pooling)}"


def _list_for_vllm(checkpoint: Checkpoint) -> Iterator[str]:
    dense = [module.path for module in checkpoint.modules if module.kind == "LayerNorm"]
    if dense:
        yield f"modules that it knows; {dense[0]} is a LayerNorm"


def _find_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text_config = config.get("text_config")
    return text_config if isinstance(text_config, Mapping) else {}
