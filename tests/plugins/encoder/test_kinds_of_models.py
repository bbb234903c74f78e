"""Backbones of token vectors, sparse vectors and pairs: as sentence-transformers computes and loads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Backbone, CheckpointError, Embeddings, Encoder, Loss, TokenisedText
from emberge.contracts import PairEncoder, SidedEncoder
from emberge.encoding import BatchEmbeddings, EncodePlan, encode_and_backward, forward
from emberge_encoder import CrossEncoder, MultiVector, Splade
from emberge_train import FLOPS, BinaryCrossEntropy, InfoNCE, KLDistillation, MarginMSE
from sentence_transformers import CrossEncoder as StockCrossEncoder
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from torch import Tensor, nn

from tests.support import tiny

QUERIES = ["a list", "open the long file now", "rows of text"]
POSITIVES = ["sorted items of a list, and more", "a path. of file", "text in rows"]
NEGATIVES = ["the weather", "another list of words and of numbers", "a file"]
PLAN = EncodePlan(20, kept_tokens=0, dropout=False)  # several chunks, each run twice


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
    assert isinstance(encoder, SidedEncoder)
    read = [encoder.tokenise(column, prompt="", max_length=None) for column in documents]
    asked = encoder.tokenise_queries(queries, prompt="", max_length=None)
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
        ("colbert", {}),
        ("colbert", {"expansion": 16, "skip_punctuation": True}),
        ("colbert", {"prompts": {"query": "the ", "document": "a "}}),
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
    assert isinstance(encoder, SidedEncoder)
    encoder.module.eval()
    asked = encoder.tokenise_queries(
        QUERIES, prompt=encoder.prompts.get("query", ""), max_length=None
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
    encoder = Splade(query="static").load(folders["splade"], device="cpu", dtype="float32")
    encoder.save(tmp_path / "static")
    with_static = SparseEncoder(str(tmp_path / "static"), device="cpu", local_files_only=True)
    static = embed(Splade(), tmp_path / "static", [QUERIES, POSITIVES])
    torch.testing.assert_close(static[3:], expected[1], atol=1e-6, rtol=0)
    asked = with_static.encode_query(QUERIES, convert_to_sparse_tensor=False)
    torch.testing.assert_close(static[:3], asked, atol=1e-6, rtol=0)
    assert (static[0] > 0).sum() == 2  # a weight for each of the query's own tokens
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


def gradients(
    backbone: Backbone, folder: Path, loss: Loss, scores: Tensor | None = None
) -> tuple[float, dict[str, Tensor]]:
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
            positive_score=None if scores is None else scores[:, :1],
            negative_score=None if scores is None else scores[:, 1:],
            in_batch=not is_of_pairs,
            similarity=encoder.similarity,
        )
        return loss(batch, {})

    texts = tokenise(encoder, [QUERIES, POSITIVES, NEGATIVES])
    result = encode_and_backward(encoder, texts, objective, PLAN, seed=0)
    found = {n: p.grad for n, p in encoder.module.named_parameters() if p.grad is not None}
    return float(result.loss), found


def stock_gradients(
    model: Any, make: Callable[[Any], nn.Module], label: Tensor | None
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
    value = loss(features, label)
    if isinstance(value, dict):
        value = torch.stack(list(value.values())).sum()
    value.backward()
    return float(value.detach()), {
        n: p.grad for n, p in model.named_parameters() if p.grad is not None
    }


def require_equal(
    ours: tuple[float, dict[str, Tensor]], theirs: tuple[float, dict[str, Tensor]]
) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    scale = max(float(gradient.abs().max()) for gradient in theirs[1].values())
    for name, gradient in theirs[1].items():
        assert float((ours[1][name] - gradient).abs().max()) <= 1e-5 * scale, name


TEACHER = torch.tensor([[0.9, 0.2], [0.7, 0.4], [0.8, 0.1]])


@pytest.mark.parametrize("name", ["infonce", "kl", "margin"])
def test_losses_of_token_vectors_are_the_librarys(folders: Mapping[str, Path], name: str) -> None:
    from sentence_transformers.multi_vector_encoder import losses as stock

    ours, make, label = {
        "infonce": (
            InfoNCE(temperature=1),
            lambda model: stock.MultiVectorMultipleNegativesRankingLoss(model),
            None,
        ),
        "kl": (
            KLDistillation(temperature=1),
            lambda model: stock.MultiVectorDistillKLDivLoss(model),
            TEACHER,
        ),
        "margin": (
            MarginMSE(),
            lambda model: stock.MultiVectorMarginMSELoss(model),
            TEACHER[:, :1] - TEACHER[:, 1:],
        ),
    }[name]
    model = MultiVectorEncoder(str(folders["colbert"]), device="cpu", local_files_only=True)
    scores = None if label is None else TEACHER
    require_equal(
        gradients(MultiVector(), folders["colbert"], ours, scores),
        stock_gradients(model, make, label),
    )


def test_the_loss_of_static_queries_is_the_librarys(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    from sentence_transformers.sparse_encoder import losses as stock

    Splade(query="static").load(folders["splade"], device="cpu", dtype="float32").save(
        tmp_path / "static"
    )
    model = SparseEncoder(str(tmp_path / "static"), device="cpu", local_files_only=True)

    class Both(Loss):
        def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
            sparsity = FLOPS(documents=0.3, queries=0)(embeddings, {})
            return InfoNCE(temperature=1)(embeddings, {}) + sparsity

    def splade(model: SparseEncoder) -> nn.Module:
        ranking = stock.SparseMultipleNegativesRankingLoss(model, scale=1.0)
        return stock.SpladeLoss(model, ranking, document_regularizer_weight=0.3)

    ours = gradients(Splade(), tmp_path / "static", Both())
    require_equal(ours, stock_gradients(model, splade, None))
    assert any("query" in name for name in ours[1])


@pytest.mark.parametrize("name", ["infonce", "kl", "margin"])
def test_losses_of_sparse_vectors_are_the_librarys(folders: Mapping[str, Path], name: str) -> None:
    from sentence_transformers.sparse_encoder import losses as stock

    ours, make, label = {
        "infonce": (
            InfoNCE(temperature=1),
            lambda model: stock.SparseMultipleNegativesRankingLoss(model, scale=1.0),
            None,
        ),
        "kl": (
            KLDistillation(temperature=2, rescale=True),
            lambda model: stock.SparseDistillKLDivLoss(model, temperature=2.0),
            TEACHER,
        ),
        "margin": (
            MarginMSE(),
            lambda model: stock.SparseMarginMSELoss(model),
            TEACHER[:, :1] - TEACHER[:, 1:],
        ),
    }[name]

    def splade(model: SparseEncoder) -> nn.Module:
        return stock.SpladeLoss(
            model, make(model), document_regularizer_weight=0.3, query_regularizer_weight=0.5
        )

    class Both(Loss):
        def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
            sparsity = FLOPS(documents=0.3, queries=0.5)(embeddings, {})
            return ours(embeddings, {}) + sparsity

    model = SparseEncoder(str(folders["splade"]), device="cpu", local_files_only=True)
    scores = None if label is None else TEACHER
    require_equal(
        gradients(Splade(), folders["splade"], Both(), scores),
        stock_gradients(model, splade, label),
    )


@pytest.mark.parametrize("name", ["binary_cross_entropy", "margin", "listwise"])
def test_losses_of_pairs_are_the_librarys(folders: Mapping[str, Path], name: str) -> None:
    from sentence_transformers.cross_encoder import losses as stock

    model = StockCrossEncoder(str(folders["reranker"]), device="cpu", local_files_only=True)
    if name == "binary_cross_entropy":
        loss = stock.BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(3.0))
        model.eval()
        texts, truth = [QUERIES * 2, POSITIVES + NEGATIVES], torch.tensor([1.0] * 3 + [0.0] * 3)
        value = loss(texts, truth)
        ours: Loss = BinaryCrossEntropy(positive_weight=3)
        scores = None
    elif name == "margin":
        loss = stock.MarginMSELoss(model)
        model.eval()
        value = loss([QUERIES, POSITIVES, NEGATIVES], TEACHER[:, 0] - TEACHER[:, 1])
        ours, scores = MarginMSE(), TEACHER
    else:
        loss = stock.ListNetLoss(model)
        model.eval()
        lists = [[p, n] for p, n in zip(POSITIVES, NEGATIVES, strict=True)]
        value = loss([QUERIES, lists], list(TEACHER))
        ours, scores = KLDistillation(temperature=1), TEACHER
    value.backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = gradients(CrossEncoder(), folders["reranker"], ours, scores)
    if name == "listwise":  # the library leaves the teacher's entropy in, which has no gradient
        shares = TEACHER.softmax(1)
        entropy = -(shares * shares.log()).sum(1).mean()
        found = (found[0] + float(entropy), found[1])
    require_equal(found, (float(value.detach()), expected))


def test_what_a_stranger_wrote_into_a_folder_is_refused(
    folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """A module of another library on a query's route, and numbers that are none."""

    def changed(name: str, file: str, change: Callable[[Any], Any]) -> Path:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folders[name] if name in folders else tmp_path / name, folder)
        path = next(folder.glob(file))
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
        return folder

    Splade(query="static").load(folders["splade"], device="cpu", dtype="float32").save(
        tmp_path / "static"
    )

    def foreign(config: dict[str, Any]) -> dict[str, Any]:
        query = next(name for name in config["types"] if name.startswith("query"))
        return {**config, "types": {**config["types"], query: "other.Module"}}

    cases: list[tuple[Backbone, Path, str]] = [
        (Splade(), changed("static", "router_config.json", foreign), "needs remote code"),
        (
            Splade(),
            changed("splade", "config.json", lambda config: {**config, "vocab_size": "many"}),
            "vocab_size is",
        ),
        (
            MultiVector(),
            changed("colbert", "*Dense/config.json", lambda one: {**one, "out_features": -1}),
            "out_features is",
        ),
        (
            CrossEncoder(),
            changed("reranker", "config.json", lambda config: {**config, "id2label": 3}),
            "2 outputs",
        ),
    ]
    for backbone, folder, said in cases:
        (problem,) = backbone.describe(folder).problems
        assert said in problem
        with pytest.raises(CheckpointError):
            backbone.load(folder, device="cpu", dtype="float32")
