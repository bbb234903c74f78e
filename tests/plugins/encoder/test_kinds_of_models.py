"""Backbones of token vectors, sparse vectors and pairs: as sentence-transformers computes and loads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Backbone, CheckpointError, Embeddings, Encoder, Loss, TokenisedText
from emberge.contracts import PairEncoder
from emberge.encoding import BatchEmbeddings, EncodePlan, encode_and_backward, forward
from emberge_encoder import CrossEncoder, MultiVector, Splade, TextEncoder
from emberge_train import FLOPS, BinaryCrossEntropy, InfoNCE
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder as StockCrossEncoder
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from torch import Tensor, nn

from tests.support import tiny
from tests.support.json_files import changing, edit

QUERIES = ["a list", "open the long file now", "rows of text"]
POSITIVES = ["sorted items of a list, and more", "a path. of file", "text in rows"]
NEGATIVES = ["the weather", "another list of words and of numbers", "a file"]
PLAN = EncodePlan(20, kept_tokens=0, draws_random=False)  # several chunks, each run twice


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return tiny.kinds(tmp_path_factory.mktemp("kinds"))


def tokenise(encoder: Encoder, columns: Sequence[Sequence[str]]) -> list[TokenisedText]:
    """Queries and documents of the columns, or the pairs of the first column with the others."""
    queries, *documents = columns
    if isinstance(encoder, PairEncoder):
        return [
            text
            for column in documents
            for text in encoder.tokenise_pairs(queries, column, prompt="", max_length=None)
        ]
    read = [encoder.tokenise(column, prompt="", max_length=None) for column in documents]
    asked = encoder.tokenise(queries, prompt="", max_length=None, queries=True)
    return [*asked, *(text for column in read for text in column)]


def embed(backbone: Backbone, folder: Path, columns: Sequence[Sequence[str]]) -> Tensor:
    encoder = backbone.load(folder, device="cpu", dtype="float32")
    encoder.module.eval()
    with torch.no_grad():
        return forward(encoder, tokenise(encoder, columns), (), None).embeddings


def rows(vectors: Tensor) -> list[Tensor]:
    """The vectors of each text's tokens that count."""
    return [text[(text != 0).any(-1)] for text in vectors]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("colbert", {"expansion": 16, "prompts": {"query": "the ", "document": "a "}}),
        ("plain", {"dimension": 16, "expansion": 12}),
        ("plain", {}),
    ],
)
def test_token_vectors_are_the_librarys_from_the_saved_folder(
    folders: Mapping[str, Path], name: str, options: Any, tmp_path: Path
) -> None:
    backbone = MultiVector(**options)
    encoder = backbone.load(folders[name], device="cpu", dtype="float32")
    facts = backbone.describe(folders[name])
    assert (facts.problems, facts.dimension) == ((), encoder.dimension)
    assert backbone.kind == facts.similarity.kind == encoder.similarity.kind
    encoder.save(tmp_path / "saved")
    stock = MultiVectorEncoder(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    encoder.module.eval()
    asked = encoder.tokenise(
        QUERIES, prompt=encoder.prompts.get("query", ""), max_length=None, queries=True
    )
    read = encoder.tokenise(POSITIVES, prompt=encoder.prompts.get("document", ""), max_length=None)
    with torch.no_grad():
        found = rows(forward(encoder, [*asked, *read], (), None).embeddings)
    expected = [*stock.encode_query(QUERIES), *stock.encode_document(POSITIVES)]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), atol=1e-6)
    scores = encoder.similarity.table(
        *(
            torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
            for part in (found[:3], found[3:])
        )
    )
    torch.testing.assert_close(
        scores, stock.similarity(expected[:3], expected[3:]), atol=1e-5, rtol=0
    )


def test_sparse_vectors_and_scores_of_pairs_are_the_librarys(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    assert Splade().describe(folders["splade"]).similarity.kind == Splade.kind
    sparse = embed(Splade(), folders["splade"], [QUERIES, POSITIVES])
    stock = SparseEncoder(str(folders["splade"]), device="cpu", local_files_only=True)
    expected = [
        stock.encode_query(QUERIES, convert_to_sparse_tensor=False),
        stock.encode_document(POSITIVES, convert_to_sparse_tensor=False),
    ]
    torch.testing.assert_close(sparse, torch.cat(expected), atol=1e-6, rtol=0)
    for name in ("reranker", "plain"):
        encoder = CrossEncoder().load(folders[name], device="cpu", dtype="float32")
        encoder.save(tmp_path / name)
        reranker = StockCrossEncoder(str(tmp_path / name), device="cpu", local_files_only=True)
        scores = reranker.predict(
            list(zip(QUERIES, POSITIVES, strict=True)), activation_fn=nn.Identity()
        )
        assert encoder.similarity.kind == CrossEncoder.kind
        found = embed(CrossEncoder(), folders[name], [QUERIES, POSITIVES])
        np.testing.assert_allclose(found[:, 0].numpy(), scores, atol=1e-6)


def lengths(texts: Sequence[TokenisedText]) -> list[int]:
    return [len(text.ids) for text in texts]


@pytest.mark.parametrize(
    ("backbone", "name"),
    [
        (Splade(max_length=5), "splade"),
        (MultiVector(max_length=5), "colbert"),
        (CrossEncoder(max_length=5), "reranker"),
    ],
    ids=["splade", "colbert", "reranker"],
)
def test_texts_are_cut_to_the_length_of_the_call_or_else_of_the_backbone(
    folders: Mapping[str, Path], backbone: Backbone, name: str
) -> None:
    encoder = backbone.load(folders[name], device="cpu", dtype="float32")
    long = " ".join(20 * ["list"])

    def read(limit: int | None) -> list[int]:
        if isinstance(encoder, PairEncoder):
            return lengths(encoder.tokenise_pairs([long], [long], prompt="", max_length=limit))
        return lengths(encoder.tokenise([long], prompt="", max_length=limit))

    assert [read(None), read(4), read(9)] == [[5], [4], [9]]


def test_prompts_of_the_options_are_added_to_those_of_the_folder(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    for backbone, name in (
        (Splade(prompts={"query": "the "}), "splade"),
        (MultiVector(prompts={"query": "the "}), "colbert"),
        (CrossEncoder(prompts={"query": "the "}), "reranker"),
    ):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folders[name], folder)
        prompts = {"query": "no ", "document": "a "}
        edit(folder, "config_sentence_transformers.json", prompts=prompts)
        encoder = backbone.load(folder, device="cpu", dtype="float32")
        found = {key: text for key, text in encoder.prompts.items() if text}
        assert found == {"query": "the ", "document": "a "}, backbone


def test_a_folder_is_known_by_its_similarity_too(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """As in folders of PyLate, which state no type."""
    folder = shutil.copytree(folders["colbert"], tmp_path / "pylate")
    with changing(folder / "config_sentence_transformers.json") as settings:
        settings.pop("model_type", None)
        settings["similarity_fn_name"] = "MaxSim"
    facts = MultiVector().describe(folder)
    assert (facts.problems, facts.untrained, facts.dimension) == ((), (), 128)
    edit(folder, "config_sentence_transformers.json", similarity_fn_name="cosine")
    assert MultiVector().describe(folder).untrained


def write_text_encoder(folder: Path, *, last: str = "Normalize") -> None:
    """Make a folder one of an encoder of whole texts, as a training with `fresh_head` saves it."""
    tiny.write_modules(folder, 32, max_length=5)
    modules = folder / "modules.json"
    modules.write_text(modules.read_text().replace("Normalize", last))
    (folder / "2_Normalize").rename(folder / f"2_{last}")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the "}}')


def test_an_encoder_of_texts_with_a_head_becomes_a_splade(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "text encoder"
    shutil.copytree(folders["splade"], folder)
    write_text_encoder(folder)
    plain = Splade(max_length=5, prompts={"query": "the "})
    expected = embed(plain, folders["splade"], [QUERIES, POSITIVES])
    assert torch.equal(embed(Splade(), folder, [QUERIES, POSITIVES]), expected)
    encoder = Splade().load(folder, device="cpu", dtype="float32")
    assert encoder.prompts["query"] == "the "
    assert encoder.dimension == expected.shape[1] == Splade().describe(folder).dimension
    encoder.save(tmp_path / "saved")
    stock = SparseEncoder(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    assert [type(module).__name__ for module in stock] == ["Transformer", "SpladePooling"]
    assert Splade().describe(tmp_path / "saved").problems == ()
    assert torch.equal(embed(Splade(), tmp_path / "saved", [QUERIES, POSITIVES]), expected)


def test_an_offset_is_subtracted_from_all_logits_once(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    head = tiny.transformer(tmp_path / "head", "AutoModelForMaskedLM", seed=3)
    offset = 0.01  # logits of a tiny random model lie about zero
    encoder = Splade(offset=offset).load(head, device="cpu", dtype="float32")
    found = embed(Splade(offset=offset), head, [QUERIES, POSITIVES])
    model, tokenizer = (one.from_pretrained(head) for one in (AutoModelForMaskedLM, AutoTokenizer))
    plain = embed(Splade(), head, [QUERIES, POSITIVES])
    assert 0 < int((found > 0).sum()) < int((plain > 0).sum())
    for row, text in zip(found, [*QUERIES, *POSITIVES], strict=True):
        with torch.no_grad():
            logits = model(**tokenizer([text], return_tensors="pt")).logits[0]
        weights = torch.log1p(torch.relu(logits - offset)).amax(0)
        torch.testing.assert_close(row, weights, atol=1e-5, rtol=1e-5)
    encoder.save(tmp_path / "saved")
    stock = SparseEncoder(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    vectors = stock.encode_document(POSITIVES, convert_to_sparse_tensor=False)
    torch.testing.assert_close(vectors, found[len(QUERIES) :], atol=1e-5, rtol=1e-5)
    assert torch.equal(embed(Splade(), tmp_path / "saved", [QUERIES, POSITIVES]), found)
    (problem,) = Splade(offset=offset).describe(tmp_path / "saved").problems
    assert "is a SPLADE already, whose logits have their offset; take offset out" in problem
    assert "take offset out" in Splade(offset=1.0).describe(folders["splade"]).problems[0]


def test_an_autoencoder_is_no_splade(folders: Mapping[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "csr"
    shutil.copytree(folders["splade"], folder)
    write_text_encoder(folder, last="SparseAutoEncoder")
    (problem,) = Splade().describe(folder).problems
    assert "autoencoder (CSR)" in problem
    with pytest.raises(CheckpointError, match="CSR"):
        Splade().load(folder, device="cpu", dtype="float32")


def test_a_reranker_without_its_head_is_refused(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """Its config names the head, so that other numbers would be random."""
    folder = shutil.copytree(folders["reranker"], tmp_path / "headless")
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has no classifier\.weight"):
        CrossEncoder().load(folder, device="cpu", dtype="float32")


def test_a_pickle_of_any_module_is_refused(folders: Mapping[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folders["colbert"], tmp_path / "copy")
    (weights,) = copy.glob("*_Dense/model.safetensors")
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(CheckpointError, match="_Dense: its weights are a pickle"):
        MultiVector().load(copy, device="cpu", dtype="float32")


@pytest.mark.parametrize(("backbone", "name"), [(Splade(), "splade"), (MultiVector(), "colbert")])
def test_queries_and_documents_keep_their_places_in_a_batch(
    folders: Mapping[str, Path], backbone: Backbone, name: str
) -> None:
    encoder = backbone.load(folders[name], device="cpu", dtype="float32")
    encoder.module.eval()
    query, first, second = tokenise(encoder, [QUERIES[:1], POSITIVES[:1], NEGATIVES[:1]])
    with torch.no_grad():
        found = forward(encoder, [first, query, second], (), None).embeddings
        alone = [forward(encoder, [text], (), None).embeddings for text in (first, query, second)]
    for vectors, own in zip(found, alone, strict=True):
        tokens = vectors[: own.shape[1]] if own.ndim == 3 else vectors
        torch.testing.assert_close(tokens, own[0], atol=1e-6, rtol=0)


def test_the_second_text_of_a_pair_has_the_type_that_its_tokenizer_gives(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["reranker"], tmp_path / "typed")
    names = ["input_ids", "token_type_ids", "attention_mask"]
    edit(folder, "tokenizer_config.json", model_input_names=names)
    encoder = CrossEncoder().load(folder, device="cpu", dtype="float32")
    (pair,) = tokenise(encoder, [QUERIES[:1], POSITIVES[:1]])
    assert pair.types is not None
    assert sorted({*pair.types}) == [0, 1]
    stock = StockCrossEncoder(str(folder), device="cpu", local_files_only=True)
    scores = stock.predict(list(zip(QUERIES, POSITIVES, strict=True)), activation_fn=nn.Identity())
    found = embed(CrossEncoder(), folder, [QUERIES, POSITIVES])
    np.testing.assert_allclose(found[:, 0].numpy(), scores, atol=1e-6)


@pytest.mark.parametrize("name", ["splade", "reranker", "colbert"])
def test_what_shares_a_batch_changes_no_embedding_where_the_tokenizer_pads_on_the_left(
    folders: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(folders[name], tmp_path / "left")
    edit(folder, "tokenizer_config.json", padding_side="left")
    backbone = {"splade": Splade(), "reranker": CrossEncoder(), "colbert": MultiVector()}[name]
    together = embed(backbone, folder, [QUERIES, POSITIVES])
    alone = [embed(backbone, folder, [[q], [p]]) for q, p in zip(QUERIES, POSITIVES, strict=True)]
    for place, vectors in enumerate(alone):
        for row, expected in enumerate(vectors):
            got = together[place + row * len(QUERIES)]
            torch.testing.assert_close(got[: len(expected)], expected, atol=1e-6, rtol=0)


def gradients(backbone: Backbone, folder: Path, loss: Loss) -> tuple[float, dict[str, Tensor]]:
    """The loss of the columns above and its gradients, through the gradient cache."""
    encoder = backbone.load(folder, device="cpu", dtype="float32")
    encoder.module.eval()
    size, is_of_pairs = len(QUERIES), encoder.similarity.kind == "pair_score"

    def objective(encoded: BatchEmbeddings) -> Tensor:
        columns = list(encoded.embeddings.split(size))
        if is_of_pairs:
            columns.insert(0, torch.ones_like(columns[0]))
        anchor, positive, negative = columns
        batch = Embeddings(
            anchor=anchor,
            positive=positive[:, None],
            negative=negative[:, None],
            valid=torch.ones(size, 2, dtype=torch.bool),
            text_id=torch.arange(3 * size).view(size, 3),
            in_batch=not is_of_pairs,
            similarity=encoder.similarity,
        )
        return loss(batch)

    texts = tokenise(encoder, [QUERIES, POSITIVES, NEGATIVES])
    result = encode_and_backward(encoder, texts, objective, PLAN, seed=0)
    found = {n: p.grad for n, p in encoder.module.named_parameters() if p.grad is not None}
    return float(result.loss), found


def stock_gradients(
    model: Any, make: Callable[[Any], nn.Module]
) -> tuple[float, dict[str, Tensor]]:
    """The same by a loss of the library."""
    loss = make(model)
    model.eval()
    for (
        module
    ) in model.modules():  # out of training, the library's pooling cannot be differentiated
        if type(module).__name__ == "SpladePooling":
            module.train()
    sides = ("query", "document", "document")
    columns = (QUERIES, POSITIVES, NEGATIVES)
    features = [
        model.preprocess(column, task=side) | {"task": side}
        for column, side in zip(columns, sides, strict=True)
    ]
    value = loss(features, None)
    if isinstance(value, dict):
        value = torch.stack(list(value.values())).sum()
    value.backward()
    return float(value.detach()), {
        n: p.grad for n, p in model.named_parameters() if p.grad is not None
    }


def assert_equal_gradients(
    ours: tuple[float, dict[str, Tensor]], theirs: tuple[float, dict[str, Tensor]]
) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in theirs[1].values())
    # Gradients of margins cancel in float32: 1.1e-5 of the largest was seen, and more with more threads.
    for name, gradient in theirs[1].items():
        assert float((ours[1][name] - gradient).abs().max()) <= 1e-4 * scale, name


def test_losses_of_token_vectors_are_the_librarys(folders: Mapping[str, Path]) -> None:
    from sentence_transformers.multi_vector_encoder import losses as stock

    model = MultiVectorEncoder(str(folders["colbert"]), device="cpu", local_files_only=True)
    assert_equal_gradients(
        gradients(MultiVector(), folders["colbert"], InfoNCE(temperature=1)),
        stock_gradients(model, stock.MultiVectorMultipleNegativesRankingLoss),
    )


def test_losses_of_sparse_vectors_are_the_librarys(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    from sentence_transformers.sparse_encoder import losses as stock

    Splade().load(folders["splade"], device="cpu", dtype="float32").save(tmp_path / "m")
    model = SparseEncoder(str(tmp_path / "m"), device="cpu", local_files_only=True)

    class Both(Loss):
        def __call__(self, embeddings: Embeddings) -> Tensor:
            sparsity = FLOPS(documents=0.3, queries=0.5)(embeddings)
            return InfoNCE(temperature=1)(embeddings) + sparsity

    def splade(model: SparseEncoder) -> nn.Module:
        ranking = stock.SparseMultipleNegativesRankingLoss(model, scale=1.0)
        return stock.SpladeLoss(
            model, ranking, document_regularizer_weight=0.3, query_regularizer_weight=0.5
        )

    ours = gradients(Splade(), tmp_path / "m", Both())
    assert_equal_gradients(ours, stock_gradients(model, splade))


def test_losses_of_pairs_are_the_librarys(folders: Mapping[str, Path]) -> None:
    from sentence_transformers.cross_encoder import losses as stock

    model = StockCrossEncoder(str(folders["reranker"]), device="cpu", local_files_only=True)
    model.eval()
    truth = torch.tensor([1.0] * 3 + [0.0] * 3)
    value = stock.BinaryCrossEntropyLoss(model)([QUERIES * 2, POSITIVES + NEGATIVES], truth)
    value.backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    ours = gradients(CrossEncoder(), folders["reranker"], BinaryCrossEntropy())
    assert_equal_gradients(ours, (float(value.detach()), expected))


@pytest.mark.parametrize(
    ("stock", "labels", "kind"),
    [
        (False, 1, "is a reranker"),
        (True, 1, "is a reranker"),
        (False, 3, "is a classifier with 3 outputs"),
    ],
)
def test_a_cross_encoder_is_no_encoder_of_texts(
    tmp_path: Path, stock: bool, labels: int, kind: str
) -> None:
    folder = tmp_path / "m"
    if stock:
        tiny.reranker(folder)
    else:
        tiny.transformer(folder, "AutoModelForSequenceClassification", num_labels=labels)
    (problem,) = TextEncoder().describe(folder).problems
    assert kind in problem
    assert ("backbone: cross_encoder" in problem) == (labels == 1)
    with pytest.raises(CheckpointError, match=kind):
        TextEncoder().load(folder, device="cpu", dtype="float32")
    facts = TextEncoder(pooling="last").describe(folder)
    assert [*facts.problems, *facts.warnings][0].startswith(f"{folder}: {kind}")
    assert bool(facts.problems) == stock  # its own modules make no embedding, whatever the pooling
    assert bool(CrossEncoder().describe(folder).problems) == (labels != 1)
