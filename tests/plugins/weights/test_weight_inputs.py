"""Sets and members of a search: texts by side, prompts, what is thinned, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from emberge import CheckpointError, DataError, DataRef, EvalSet, PerTensor, TokenisedText
from emberge_data import JsonLines
from emberge_encoder import TextEncoder
from emberge_merge import Linear
from emberge_weights.layers.labelled_texts import LabelledTexts, order_loss, ranking_loss
from emberge_weights.members import (
    Prompting,
    SideVectors,
    before_length_one,
    member_inputs,
    plan_members,
)
from emberge_weights.weight_sets import SetEntry, WeightSet, read_sets, unusable

from tests.support import tiny
from tests.support.bench import model_at, write_rows


def write_catalogue(folder: Path) -> Path:
    """Write a catalogue with a set of each kind, all of few texts."""
    entries = [
        {"name": "asked", "task": "retrieval", "instruction": "Find it", "prompt": "Find: "},
        {"name": "near", "task": "sts"},
        {"name": "same", "task": "pair_classification"},
        {"name": "topics", "task": "clustering"},
    ]
    path = folder / "datasets.yaml"
    entries = [{**one, "dir": one["name"], "language": "en"} for one in entries]
    path.write_text(yaml.safe_dump({"format": 1, "eval": entries}))
    rows = [{"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(9)]
    write_rows(folder / "asked" / "corpus.jsonl.gz", rows)
    asked = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)]
    write_rows(folder / "asked" / "queries.jsonl.gz", asked)
    judged = "query-id\tcorpus-id\tscore\nq0\td1\t2\nq0\td3\t1\nq1\td0\t1\nq2\td8\t0\nq2\td2\t1\n"
    for name in ("qrels.tsv", "qrels_dev.tsv"):
        (folder / "asked" / name).write_text(judged)
    for kind, gold in (("near", (0.25, 0.75)), ("same", (0.25, 0.75))):
        pairs = [
            {"query": f"x{i}", "pos": [f"y{i % 2}"], "pos_scores": [gold[i % 2]]} for i in range(3)
        ]
        for half in ("dev", "test"):
            write_rows(folder / kind / f"{half}.jsonl.gz", pairs)
    return path


def read(folder: Path, metric: Any = "task", **options: Any) -> list[WeightSet]:
    entry = SetEntry(path=DataRef(str(write_catalogue(folder))), **options)
    return list(read_sets([entry], lambda ref: Path(ref.text), (JsonLines(),), metric))


ASKED = WeightSet(
    name="asked-dev",
    kind="retrieval",
    statistic="mean",
    metric="ndcg_at_10",
    queries=[f"query {i}" for i in range(3)],
    documents=[f"text {i}" for i in range(9)],
    relevant=[{1: 2, 3: 1}, {0: 1}, {8: 0, 2: 1}],
    asked={"instruction": "Find it", "prompt": "Find: "},
)
NEAR = WeightSet(
    name="near-dev",
    kind="sts",
    statistic="spearman",
    metric="spearman",
    queries=["x0", "x1", "x2"],
    documents=["y0", "y1", "y0"],
    gold=[0.25, 0.75, 0.25],
    alike=True,
    asked={"instruction": "", "prompt": ""},
)


def test_sets_have_their_texts_by_side_and_what_decides_their_scores(tmp_path: Path) -> None:
    same = replace(
        NEAR,
        name="same-dev",
        kind="pair_classification",
        statistic="average_precision",
        metric="average_precision",
        gold=[0.0, 1.0, 0.0],  # rounded, as an evaluation does
    )
    assert read(tmp_path, only=("asked", "near", "same")) == [ASKED, NEAR, same]
    assert (ASKED.unit, NEAR.unit) == ("query", "pair")
    assert not ASKED.itself
    assert not NEAR.itself


def test_without_labels_texts_count_once_and_are_compared_with_each_other(tmp_path: Path) -> None:
    asked, near = read(tmp_path, "agreement", only=("asked", "near"), split="test")
    assert asked == replace(ASKED, name="asked", metric="agreement", relevant=())
    assert near == replace(
        NEAR,
        name="near",
        statistic="mean",
        metric="agreement",
        queries=["x0", "x1", "x2", "y0", "y1"],
        documents=["x0", "x1", "x2", "y0", "y1"],
        gold=(),
    )
    assert near.itself
    assert not asked.itself


def test_a_corpus_keeps_what_belongs_to_queries_and_as_many_others_in_its_order(
    tmp_path: Path,
) -> None:
    (some,) = read(tmp_path, only=("asked",), limit_documents=2)
    assert len(some.documents) == 7
    assert list(some.documents) == sorted(some.documents)
    assert {*some.documents} > {f"text {i}" for i in (0, 1, 2, 3, 8)}
    assert [[*map(some.documents.__getitem__, one)] for one in some.relevant] == [
        ["text 1", "text 3"],
        ["text 0"],
        ["text 8", "text 2"],
    ]
    (none,) = read(tmp_path, only=("asked",), limit_documents=0)
    assert len(none.documents) == 5
    (fewer,) = read(tmp_path, only=("asked",), limit_documents=1)
    assert {*none.documents} < {*fewer.documents} < {*some.documents}


def test_queries_are_limited_by_the_entry(tmp_path: Path) -> None:
    sets = read(tmp_path, only=("asked", "near"), limit_queries=1)
    assert [len(one.queries) for one in sets] == [1, 1]


def eval_set(task: Any, metric: str | None = None) -> EvalSet:
    return EvalSet(name="s", folder=Path(), task=task, metric=metric)


def test_a_set_that_similarities_cannot_score_is_refused(tmp_path: Path) -> None:
    assert unusable(eval_set("retrieval", "ndcg_at_10"), "task") is None
    assert unusable(eval_set("sts", "cosine_spearman"), "task") is None
    assert unusable(eval_set("pair_classification", "cosine_ap"), "task") is None
    wrong = unusable(eval_set("sts", "pearson"), "task")
    assert wrong == "set 's' is judged by pearson; from similarities spearman is computed"
    assert unusable(eval_set("sts", "pearson"), "agreement") is None
    assert unusable(eval_set("reranking"), "neighbours") == "set 's' is for reranking"
    kind = unusable(eval_set("clustering"), "task")
    assert kind is not None
    assert "retrieval, sts, pair_classification, or write `metric: agreement`" in kind
    with pytest.raises(DataError, match="'topics' is of kind clustering"):
        read(tmp_path, only=("topics",))


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "own", "one", "prompts"),
    [
        (None, {"query": "q", "document": "d", "passage": "p"}, ASKED, ("q", "d")),
        (None, {"passage": "p"}, ASKED, ("", "p")),
        (None, {"query": "q", "document": "d"}, NEAR, ("", "")),
        (
            "{instruction}: {prompt}",
            {"query": "q", "document": "d"},
            ASKED,
            ("Find it: Find: ", ""),
        ),
        ("to ", {"query": "q"}, NEAR, ("to ", "to ")),
        ("", {"query": "q", "document": "d"}, ASKED, ("", "")),
    ],
)
def test_a_template_comes_before_queries_or_else_the_models_own_prompts(
    template: str | None, own: Mapping[str, str], one: WeightSet, prompts: tuple[str, str]
) -> None:
    found = Prompting(template, own)
    assert (found.of(one, "query"), found.of(one, "document")) == prompts


def test_a_backbone_is_left_as_it_is_but_for_the_length_of_its_embeddings() -> None:
    backbone = TextEncoder(pooling="mean")
    assert before_length_one(backbone) == replace(backbone, normalize=False)
    plain: Any = dataclasses.make_dataclass("Plain", [("width", int)])(3)
    assert before_length_one(plain) is plain


# ── members ─────────────────────────────────────────────────────────────────────────────────────


def test_members_without_weight_are_no_inputs_of_a_merge(bert: Path, berts: list[Path]) -> None:
    models = [model_at(folder) for folder in (bert, *berts)]
    layered = PerTensor(0.0)
    found = member_inputs(models, [0.25, 0.0, layered, 1.5])
    assert [(one.name, one.folder, one.weight, one.fingerprint) for one in found] == [
        (f"{bert.name} (1)", bert, PerTensor(0.25), models[0].fingerprint),
        (f"{berts[1].name} (3)", berts[1], layered, models[2].fingerprint),
        (f"{berts[2].name} (4)", berts[2], PerTensor(1.5), models[3].fingerprint),
    ]
    adapted = replace(models[0], adapter=bert)
    assert member_inputs([adapted], [1.0])[0].adapter == bert


def test_members_of_another_width_are_refused(berts: list[Path], tmp_path: Path) -> None:
    wide = tiny.checkpoint(tmp_path / "wide", hidden_size=48)
    with pytest.raises(CheckpointError, match="wide"):
        plan_members([model_at(berts[0]), model_at(wide)], Linear())


def test_members_are_two_or_more_and_all_different(berts: list[Path]) -> None:
    models = [model_at(folder) for folder in berts]
    assert len(plan_members(models[:2], Linear()).request.inputs) == 2
    with pytest.raises(CheckpointError, match="two models, or one and its base"):
        plan_members(models[:1], Linear())
    copy = replace(models[0], name="copy")
    with pytest.raises(CheckpointError, match=f"'{models[0].name}' and 'copy' are the same model"):
        plan_members([*models, copy], Linear())


# ── batches of labelled texts ───────────────────────────────────────────────────────────────────


class Letters:
    """A tokenizer of one id a text: a number of its own."""

    def __init__(self) -> None:
        self.given: list[tuple[str, int | None]] = []

    def tokenise(self, texts: Any, *, prompt: str, max_length: int | None) -> list[TokenisedText]:
        self.given.append((prompt, max_length))
        return [TokenisedText([int(text.split()[-1].lstrip("xy"))]) for text in texts]


def labelled(one: WeightSet, encoder: Letters | None = None) -> LabelledTexts:
    """Return the texts of a set, for which each document is nearest to the query of its number."""
    queries = np.eye(12, dtype=np.float32)[: len(one.queries)]
    steps = 1 - 0.05 * np.abs(np.arange(12)[:, None] - np.arange(12)[None])
    documents = steps[: len(one.documents)].astype(np.float32)
    given: Any = Letters() if encoder is None else encoder
    prompting = Prompting(None, {"query": "q", "document": "d"})
    return LabelledTexts(one, [SideVectors(queries, documents)], np.ones(1), given, prompting, 7)


def test_queries_and_documents_are_tokenised_with_their_prompts() -> None:
    encoder = Letters()
    found = labelled(ASKED, encoder)
    assert found.name == "asked-dev"
    assert [one.ids[0] for one in found.queries] == [0, 1, 2]
    assert [one.ids[0] for one in found.documents] == list(range(9))
    assert encoder.given == [("q", 7), ("d", 7)]
    encoder = Letters()
    assert [one.ids[0] for one in labelled(NEAR, encoder).documents] == [0, 1, 0]
    assert encoder.given == [("", 7), ("", 7)]


def test_batches_are_of_units_with_labels_and_come_round_again() -> None:
    one = replace(
        ASKED, queries=[f"query {i}" for i in range(12)], relevant=[{0: i % 3} for i in range(12)]
    )
    units = np.arange(11)
    batches = labelled(one).batches(units, np.random.default_rng(0))
    usable = [1, 2, 4, 5, 7, 8, 10]
    first, second = sorted(next(batches)), sorted(next(batches))
    assert first == second == usable
    unlabelled = replace(one, relevant=[{0: 0}] * 12)
    assert list(labelled(unlabelled).batches(units, np.random.default_rng(0))) == []


@pytest.mark.parametrize(("one", "size"), [(ASKED, 16), (NEAR, 32)])
def test_a_batch_has_sixteen_queries_or_thirty_two_pairs(one: WeightSet, size: int) -> None:
    count = 70
    texts = [f"x {i}" for i in range(count)]
    many = replace(one, queries=texts, relevant=[{0: 1}] * count, gold=[0.5] * count)
    many = replace(many, gold=many.gold if one.gold else ())
    vectors = np.ones((count, 2), np.float32)
    encoder: Any = Letters()
    found = LabelledTexts(
        many, [SideVectors(vectors, vectors[:9])], np.ones(1), encoder, Prompting("", {}), None
    )
    batches = found.batches(np.arange(count), np.random.default_rng(0))
    whole = [next(batches) for _ in range(count // size)]
    assert {len(batch) for batch in whole} == {size}
    # No unit comes again before the others have come, but for those that fill no batch.
    assert len({*np.concatenate(whole).tolist()}) == count // size * size
    assert len(next(batches)) == size


def test_the_loss_of_pairs_is_that_of_their_cosines() -> None:
    left, right = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    units = np.array([2, 0, 1])
    given: list[list[int]] = []

    def embed(texts: Any) -> torch.Tensor:
        given.append([one.ids[0] for one in texts])
        return torch.cat([left, right])

    found = labelled(NEAR).loss(embed, units)
    assert given == [[2, 0, 1, 0, 0, 1]]
    cosines = torch.nn.functional.cosine_similarity(left, right)
    gold = torch.tensor([0.25, 0.25, 0.75])
    torch.testing.assert_close(found, order_loss(cosines, gold))


def test_the_loss_of_queries_is_over_their_own_documents_and_the_nearest_others() -> None:
    one = replace(ASKED, relevant=[{1: 1, 3: 3, 5: 2, 7: 0}, {0: 1}, {8: 0, 2: 1}])
    given: list[list[int]] = []

    def embed(texts: Any) -> torch.Tensor:
        given.append([one.ids[0] for one in texts])
        return 1 + torch.arange(len(texts) * 4).reshape(-1, 4).float().sin()

    found = labelled(one).loss(embed, np.array([2, 0]))
    # Of query 0 the two best of its documents, 3 and 5, and the nearest others, 0, 2 and 4; of query 2 its
    # own, 2, and those beside it: 1, 3 and 4 or 0.
    own, near = {2, 3, 5}, {0, 1, 2, 3, 4}
    queries, documents = given[0][:2], given[0][2:]
    assert queries == [2, 0]
    assert documents == sorted(own | near)
    vectors = torch.nn.functional.normalize(embed([TokenisedText([i]) for i in given[0]]), dim=1)
    relevant = torch.tensor([[p == 2 for p in documents], [p in (1, 3, 5) for p in documents]])
    torch.testing.assert_close(found, ranking_loss(vectors[:2] @ vectors[2:].T, relevant))


def test_soft_scores_are_those_of_worked_numbers() -> None:
    cosines = torch.tensor([[0.1, 0.0, 0.05], [0.0, 0.0, 0.0]])
    relevant = torch.tensor([[True, False, True], [False, True, False]])
    e = np.exp
    expected = (np.log(e(2) + 1 + e(1)) - np.log(e(2) + e(1)) + np.log(3)) / 2
    assert ranking_loss(cosines, relevant).item() == pytest.approx(expected, rel=1e-5)
    # Of the pairs (0, 1) and (0, 2) each is in the right order by 0.05 and in the wrong one by 0.1.
    found = order_loss(torch.tensor([0.1, 0.05, 0.2]), torch.tensor([1.0, 0.5, 0.5]))
    assert found.item() == pytest.approx(np.log(1 + e(-1) + e(2)), rel=1e-5)


def test_rows_are_a_set_with_further_documents(tmp_path: Path) -> None:
    path, documents = tmp_path / "own.jsonl.gz", tmp_path / "docs.jsonl.gz"
    write_rows(path, [{"query": "Q", "pos": "P", "neg": ["N"]}])
    write_rows(documents, [{"text": "D"}])
    entry = SetEntry(path=DataRef(str(path)), documents=DataRef(str(documents)))
    (one,) = read_sets([entry], lambda ref: Path(ref.text), (JsonLines(),), "task")
    assert (one.name, one.queries, one.documents) == ("own-dev", ["Q"], ["D", "P", "N"])
    assert one.relevant == [{1: 1}]
