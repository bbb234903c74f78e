"""GGUF files: llama.cpp itself loads each, and its embeddings are those of sentence-transformers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError, Plugins, check_recipe, parse_recipe, run_recipe
from emberge.files import read_json, write_json
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.page_code import run_block
from tests.support.result_folders import artifact_of
from tests.support.tiny import minilm, shaken, write_modules

for _package in ("gguf", "xllamacpp"):
    pytest.importorskip(_package, reason=f"no {_package}: pip install 'emberge[export]'")
from emberge_export.gguf_tokenizer import _NAME_BY_PATTERN  # noqa: E402

_PARTS = (
    (
        ("The harbour", "A librarian", "My neighbour's dog", "Nobody"),
        ("was closed", "reads 3 maps"),
    ),
    (("Старый мост", "Библиотека", "Моя соседка", "Никто"), ("открыт до 18:00", "не спит")),
    (("天气预报", "图书馆", "我的邻居", "没有人"), ("说明天下雨", "在读书。")),
    (("مكتبة المدينة", "الجسر القديم", "جاري", "لا أحد"), ("مغلقة اليوم", "يقرأ كتابا")),
)
# The least mean and the least single cosine: with q8_0 llama.cpp rounds activations to 8 bits too.
_LEAST = {"f32": (0.9999, 0.9999), "f16": (0.9999, 0.9999), "q8_0": (0.999, 0.99)}
_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


def list_texts() -> list[str]:
    """200 texts in four scripts, 50 in each."""
    return [
        " ".join([who, what] * (1 + number % 3)) + f" {number}"
        for number in range(50)
        for whos, whats in _PARTS
        for who, what in [(whos[number % 4], whats[number // 4 % 2])]
    ]


def embed_both(folder: Path, precision: str, path: Path, texts: list[str]) -> NDArray[Any]:
    """Return the cosines of a file's embeddings with those of sentence-transformers."""
    from emberge_export.model_exporter import ModelExporter

    exporter = ModelExporter(folder, precision)  # type: ignore[arg-type]
    exporter.write("gguf", path)
    ours, theirs = exporter.embed(texts), exporter.embed(texts, path)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return np.asarray((ours * theirs).sum(1) / norms)


def train_tokenizer(
    tokenizer: Any, trainer: Any, before: str, after: str, specials: list[str]
) -> Any:
    """Return a fast tokenizer with a vocabulary of the texts, and these tokens around a text."""
    from transformers import PreTrainedTokenizerFast

    tokenizer.train_from_iterator(list_texts(), trainer)
    template = " ".join(one for one in (before, "$A", after) if one)
    around = [(one, tokenizer.token_to_id(one)) for one in (before, after) if one]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
    pad, unknown = specials[:2]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        extra_special_tokens=specials[2:],
    )


def byte_tokenizer(pre_tokenizer: Any, before: str, after: str) -> Any:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, initial_alphabet=alphabet
    )
    return train_tokenizer(tokenizer, trainer, before, after, specials)


def make_qwen3(is_causal: bool) -> tuple[Any, Any]:
    import transformers

    words = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(next(iter(_NAME_BY_PATTERN))), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = byte_tokenizer(words, "", "[SEP]")
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer) + 3,
        num_key_value_heads=2,
        head_dim=32,
        is_causal=is_causal,
        **_SIZES,
    )
    return transformers.Qwen3Model(config), tokenizer


def make_modern_bert() -> tuple[Any, Any]:
    import transformers

    tokenizer = byte_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False), "[CLS]", "[SEP]")
    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), local_attention=8, **special, **_SIZES
    )
    return transformers.ModernBertModel(config), tokenizer


def make_xlm_roberta() -> tuple[Any, Any]:
    import transformers

    specials = ["<pad>", "<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=specials, unk_token="<unk>")
    fast = train_tokenizer(tokenizer, trainer, "<s>", "</s>", specials)
    config = transformers.XLMRobertaConfig(
        vocab_size=len(fast),
        pad_token_id=1,
        max_position_embeddings=514,
        type_vocab_size=1,
        **_SIZES,
    )
    return transformers.XLMRobertaModel(config), fast


def make_gemma3() -> tuple[Any, Any]:
    import transformers

    specials = ["<pad>", "<unk>", "<bos>", "<eos>"]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials + bytes_)
    fast = train_tokenizer(tokenizer, trainer, "<bos>", "<eos>", specials)
    fast.backend_tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    fast.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    heads = {"num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32}
    config = transformers.Gemma3TextConfig(
        vocab_size=len(fast), sliding_window=10, use_bidirectional_attention=True, **heads, **_SIZES
    )
    return transformers.Gemma3TextModel(config), fast


def save_encoder(folder: Path, model: Any, tokenizer: Any, pooling: str) -> Path:
    """Write a SentenceTransformers folder of a model whose every tensor, norms too, is random."""
    torch.manual_seed(0)
    shaken(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_modules(folder, 64, pooling=pooling, max_length=256)
    return folder


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        ("qwen3", "last"),
        ("qwen3_encoder", "mean"),
        ("modernbert", "cls"),
        ("xlm-roberta", "mean"),
        ("gemma3", "mean"),
    ],
)
def test_llama_cpp_gives_the_embeddings_of_each_family(
    family: str, pooling: str, tmp_path: Path
) -> None:
    make = {
        "qwen3": lambda: make_qwen3(is_causal=True),
        "qwen3_encoder": lambda: make_qwen3(is_causal=False),
        "modernbert": make_modern_bert,
        "xlm-roberta": make_xlm_roberta,
        "gemma3": make_gemma3,
    }[family]
    folder = save_encoder(tmp_path / "model", *make(), pooling)
    for precision, (mean, least) in _LEAST.items():
        cosines = embed_both(folder, precision, tmp_path / f"{precision}.gguf", list_texts())
        assert cosines.mean() >= mean, precision
        assert cosines.min() >= least, precision


@pytest.mark.slow
@pytest.mark.parametrize("precision", _LEAST)
def test_llama_cpp_gives_the_embeddings_of_minilm_on_four_scripts(
    precision: str, tmp_path: Path
) -> None:
    cosines = embed_both(minilm(), precision, tmp_path / "model.gguf", list_texts())
    mean, least = _LEAST[precision]
    assert cosines.mean() >= mean
    assert cosines.min() >= least


def parse(folder: Path, plugins: Plugins, options: str = "") -> Any:
    text = f"steps:\n  served:\n    export: {{model: {folder}, formats: [gguf]{options}}}\n"
    return parse_recipe(text, plugins, path=folder.parent / "recipe.yaml")


def test_the_step_writes_one_file_which_the_page_reads_and_states_its_cosines(
    bert: Path, tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = parse(bert, plugins, ", precision: q8_0")
    result = Path(run_recipe(recipe, tmp_path / "out", plugins, quiet=True)["served"])
    assert [path.name for path in (result / "gguf").iterdir()] == ["model-q8_0.gguf"]
    artifact = artifact_of(result)
    assert artifact.details["exported"].keys() == {"torch", "q8_0"}
    assert artifact.details["exported"]["q8_0"]["least_cosine"] > 0.99
    monkeypatch.chdir(tmp_path)
    names = run_block("howto/export.md", "xllamacpp")
    expected = SentenceTransformer(str(result), device="cpu").encode(["how to sort a list"])
    assert ((expected * names["vectors"]).sum(1) > 0.99).all()


def change(folder: Path, tmp_path: Path, file: str, **changes: Any) -> Path:
    shutil.copytree(folder, tmp_path / "changed")
    path = tmp_path / "changed" / file
    write_json(path, {**read_json(path), **changes})
    return tmp_path / "changed"


def test_the_check_says_what_a_file_of_llama_cpp_lacks(
    bert: Path, tmp_path: Path, plugins: Plugins
) -> None:
    prompts = {"prompts": {"query": "query: "}}
    folder = change(bert, tmp_path, "config_sentence_transformers.json", **prompts)
    modules = read_json(folder / "modules.json")
    dense = {"idx": 9, "name": "9", "path": "9_Dense", "type": "sentence_transformers.models.Dense"}
    write_json(folder / "modules.json", [*modules, dense])
    found = [str(one.message) for one in check_recipe(parse(folder, plugins), plugins).problems]
    assert any("llama.cpp has no Dense after pooling" in one for one in found)
    assert any("a GGUF file has no prompts" in one for one in found)


def test_a_tokenizer_that_llama_cpp_lacks_is_refused(
    bert: Path, tmp_path: Path, plugins: Plugins
) -> None:
    folder = change(bert, tmp_path, "tokenizer.json", pre_tokenizer={"type": "WhitespaceSplit"})
    with pytest.raises(CheckpointError, match=r"cannot be exported as gguf: .*BERT's normalizer"):
        run_recipe(parse(folder, plugins), tmp_path / "out", plugins, quiet=True)


def test_a_file_that_llama_cpp_cannot_load_is_named(tmp_path: Path) -> None:
    from emberge_export.gguf_file import embed_by_llama_cpp

    (tmp_path / "torn.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"torn\.gguf: llama\.cpp cannot embed"):
        embed_by_llama_cpp(tmp_path / "torn.gguf", ["a"])
