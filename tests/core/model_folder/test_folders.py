"""Files of model folders other than safetensors: refused, compared, copied, or left out with a message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint, describe_origin, hash_model

from tests.support import tiny
from tests.support.json_files import changing, edit
from tests.support.tolerance import assert_combined, assert_same_pass
from tests.support.whole import embed, files, merge, move_trunk, plan, problems, tensors


def inside(folder: Path, name: str, content: bytes = b"x") -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pytorch_model.bin", "is a pickle, which can run any code"),
        ("model.gguf", "has only weights in another format (model.gguf)"),
        ("onnx/model.onnx", "has only weights in another format (onnx)"),
        ("tf_model.h5", "has only weights in another format (tf_model.h5)"),
        ("adapter_config.json", "name it with its base, as me/base+/"),
        ("best.safetensors", "has best.safetensors, but neither"),
    ],
)
def test_an_unsupported_format_is_named_in_the_error(
    bert: Path, tmp_path: Path, name: str, said: str
) -> None:
    other = shutil.copytree(bert, tmp_path / "other")
    (other / "model.safetensors").unlink()
    inside(other, name, b'{"base_model_name_or_path": "me/base"}')
    found = problems(bert, other)
    assert said in found
    assert "\n" not in found
    if "pickle" in said:
        assert f"`emberge safetensors {other}`" in found
    if "adapter" in said:
        assert f"as me/base+{other}" in found
    with pytest.raises(CheckpointError, match="other"):
        merge(tmp_path / "out", bert, other)
    assert not (tmp_path / "out").exists()


def test_other_modules_or_module_sizes_are_a_problem(tmp_path: Path) -> None:
    one, narrow = tiny.projected(tmp_path / "one"), tiny.projected(tmp_path / "two", dimension=4)
    assert problems(one, narrow) == (
        "'one' and 'two': Dense's out_features is 8 in one and 4 in the other (4_Dense/config.json); "
        "merge models of one architecture, or choose one with 'template'"
    )
    relu = shutil.copytree(one, tmp_path / "relu")
    edit(relu, "2_Dense/config.json", activation_function="torch.nn.modules.activation.ReLU")
    said = problems(one, relu)
    assert "Dense's activation_function is 'torch.nn.modules.activation.Tanh' in one" in said
    short = shutil.copytree(one, tmp_path / "short")
    listed = json.loads((short / "modules.json").read_text())
    (short / "modules.json").write_text(json.dumps(listed[:4]))
    said = problems(one, short)
    assert "Dense + LayerNorm + Dense + Normalize in one and" in said
    assert "(modules.json)" in said
    assert "\n" not in said


def test_another_similarity_needs_a_chosen_template(tmp_path: Path) -> None:
    one = tiny.reranker(tmp_path / "one")
    two = shutil.copytree(one, tmp_path / "two")
    edit(one, "config.json", id2label={"0": "yes"})
    edit(two, "config.json", id2label={"0": "no"})
    assert "id2label is {'0': 'yes'} in one and {'0': 'no'} in the other" in problems(one, two)
    edit(two, "config.json", id2label={"0": "yes"})
    assert not problems(one, two)
    # An older release writes the activation into config.json.
    (two / "config_sentence_transformers.json").unlink()
    activation = "torch.nn.modules.activation.Sigmoid"
    edit(two, "config.json", sentence_transformers={"activation_fn": activation})
    assert not problems(one, two)
    edit(two, "config.json", sentence_transformers={"activation_fn": "torch.nn.Identity"})
    assert "activation_fn is 'Sigmoid' in one and 'Identity' in the other" in problems(one, two)


def test_module_configs_of_all_releases_compare_equal(tmp_path: Path) -> None:
    new = tiny.projected(tmp_path / "new")
    old = Path(shutil.copytree(new, tmp_path / "old"))
    with changing(old / "modules.json") as listed:
        for module in listed:
            module["type"] = "sentence_transformers.models." + module["type"].rpartition(".")[2]
    for name in ("2_Dense", "4_Dense"):
        with changing(old / name / "config.json") as config:
            for key in ("module_input_name", "module_output_name", "use_residual"):
                config.pop(key, None)
    flags = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (old / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    for one, other in ((new, old), (old, new)):
        assert not problems(one, other)
        out = merge(tmp_path / f"of {one.name}", one, other)
        assert (out / "modules.json").read_bytes() == (one / "modules.json").read_bytes()
    edit(new, "4_Dense/config.json", use_residual=True)
    assert "Dense's use_residual True" in "".join(plan(old, new).warnings)


def test_files_that_are_not_copied_are_named_with_a_reason(bert: Path, tmp_path: Path) -> None:
    old = shutil.copytree(bert, tmp_path / "old")
    for name in (
        *("onnx/model.onnx", "openvino/openvino_model.xml", ".git/config", "eval/sts.csv"),
        *("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt"),
        *("rng_state.pth", "README.md", "tf_model.h5", "trainer_state.json", "plot.png"),
    ):
        inside(old, name)
    (old / "LICENSE").write_text("mine")
    found = plan(old, bert)
    assert not found.problems, "safetensors are preferred to a pickle beside them"
    line = describe_origin(Checkpoint(old))
    assert line.endswith(
        "left out: .git/ (of the repository, not of the model), README.md (a card of its own is written), "
        "optimizer.pt, rng_state.pth, scheduler.pt and 2 more (a training's state), eval/ (a training's "
        "record), onnx/, openvino/, pytorch_model.bin and 1 more (weights in another format), plot.png "
        "(no file of a model)"
    )
    out = merge(tmp_path / "out", old, bert)
    assert files(out).keys() - {"LICENSE"} == files(bert).keys()
    assert (out / "LICENSE").read_text() == "mine"


def test_a_chosen_tokenizer_is_written_into_the_trunks_folder(bert: Path, tmp_path: Path) -> None:
    old = move_trunk(shutil.copytree(bert, tmp_path / "old"))
    out = merge(tmp_path / "out", old, bert, tokenizer=bert)
    assert files(out).keys() == files(old).keys()
    assert_same_pass(embed(out), embed(bert), bert)


def _router(folder: Path, seed: int) -> Path:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    plain = tiny.transformer(folder.with_name(f".{folder.name}"), "AutoModelForMaskedLM", seed=seed)
    document = Transformer(str(plain), transformer_task="fill-mask")
    torch.manual_seed(seed)
    size = document.tokenizer.vocab_size
    query = SparseStaticEmbedding(tokenizer=document.tokenizer, weight=torch.rand(size))
    routes = Router.for_query_document([query], [document, SpladePooling("max")])
    SparseEncoder(modules=[routes], device="cpu").save_pretrained(str(folder))
    return folder


def _static(folder: Path, seed: int) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    torch.manual_seed(seed)
    tokenizer = Tokenizer.from_str(tiny._tokenizer_json())
    chain = [StaticEmbedding(tokenizer, embedding_dim=8)]
    SentenceTransformer(modules=chain, device="cpu").save_pretrained(str(folder))
    return folder


def _sparse(folder: Path) -> torch.Tensor:
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(folder), device="cpu")
    return model.encode_document(["read a file"], convert_to_sparse_tensor=False)


@pytest.mark.parametrize(("make", "score"), [(_router, _sparse), (_static, embed)])
def test_every_module_of_a_chain_is_merged(
    make: Callable[[Path, int], Path], score: Callable[[Path], Any], tmp_path: Path
) -> None:
    one, two = make(tmp_path / "one", 1), make(tmp_path / "two", 2)
    assert not problems(one, two)
    out = merge(tmp_path / "out", one, two)
    first, second, merged = tensors(one), tensors(two), tensors(out)
    assert merged.keys() == first.keys()
    for name, tensor in merged.items():
        if tensor.is_floating_point():
            assert_combined(tensor, [first[name], second[name]], [0.5, 0.5])
        else:  # a counter
            assert torch.equal(tensor, first[name])
    same = merge(tmp_path / "same", one, shutil.copytree(one, tmp_path / "twin"))
    assert torch.equal(score(same), score(one))
    assert files(same).keys() == files(one).keys() - {"README.md"}


def test_modules_behind_a_router_count_in_chain_and_fingerprint(tmp_path: Path) -> None:
    folder = _router(tmp_path / "one", 1)
    routes = json.loads((folder / "router_config.json").read_text())["types"]
    router, *behind = Checkpoint(folder).all_modules
    assert router.kind == "Router"
    assert {module.path: module.type for module in behind} == routes
    assert all(module.type.endswith(f".{module.kind}") for module in behind)
    assert all("." not in module.kind for module in behind)
    before = hash_model(folder)
    (path,) = folder.glob("query_*/model.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert hash_model(folder) != before
