"""What DATA names, what is understood of its rows, and what is wrong with it, told before any work."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from emberge import DataError, Plugins, RecipeError
from emberge_adapt import parse_columns, read_data_facts, recognise_data

from tests.support.tiny import WORDS


def write_pairs(path: Path, count: int = 60, *, heading: str = "query,document") -> Path:
    draw = random.Random(0)
    rows = [
        f"{' '.join(draw.choices(WORDS, k=4))},{' '.join(draw.choices(WORDS, k=9))}"
        for _ in range(count)
    ]
    path.write_text("\n".join([heading, *rows]) + "\n", "utf-8")
    return path


def test_files_hub_names_catalogues_and_folders_of_documents_are_told_apart(
    tmp_path: Path,
) -> None:
    pairs = write_pairs(tmp_path / "pairs.csv")
    documents = tmp_path / "handbook" / "deep"
    documents.mkdir(parents=True)
    (documents / "a.md").write_text("# A\n", "utf-8")
    catalogue = tmp_path / "catalogue"
    catalogue.mkdir()
    (catalogue / "datasets.yaml").write_text("train: []\n", "utf-8")
    assert recognise_data(str(pairs)).entry == {"path": str(pairs)}
    assert recognise_data("hub:me/faq", {"anchor": "q"}).entry == {
        "hub": "me/faq",
        "columns": {"anchor": "q"},
    }
    assert recognise_data(str(catalogue)).kind == "rows"
    assert recognise_data(str(tmp_path / "handbook")).kind == "documents"


def test_data_that_cannot_be_used_is_named_with_the_remedy(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.csv")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.txt").write_text("a", "utf-8")
    (tmp_path / "library").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "library" / name).write_text("")
    for data, words in (
        (str(tmp_path / "pair.csv"), r"pair\.csv: .*did you mean 'pairs\.csv'"),
        ("me/faq", "hub:me/faq"),
        (str(tmp_path / "one" / "a.txt"), "name the folder of all documents"),
        (str(tmp_path / "library"), r"is a BEIR set; .*`query` and `pos`"),
    ):
        with pytest.raises(DataError, match=words):
            recognise_data(data)
    folder = tmp_path / "tables"
    folder.mkdir()
    write_pairs(folder / "pairs.csv")
    with pytest.raises(DataError, match=r"no documents.*it has pairs\.csv; name a file"):
        recognise_data(str(folder))


def test_columns_are_named_by_the_words_that_people_use() -> None:
    assert parse_columns(["query=frage,document=antwort", "negative=falsch"]) == {
        "anchor": "frage",
        "positive": "antwort",
        "negative": "falsch",
    }


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["query"], "query=COLUMN"),
        (["=x"], "query=COLUMN"),
        (["Question=query"], "no part 'Question'; the part comes first: query=Question"),
        (["qery=x"], "did you mean 'query'"),
        (["query=a", "anchor=b"], "two columns"),
    ],
)
def test_wrong_columns_are_refused_with_the_remedy(words: list[str], remedy: str) -> None:
    with pytest.raises(RecipeError, match=remedy):
        parse_columns(words)


def test_the_preview_shows_counts_columns_and_three_rows(
    tmp_path: Path, bert: Path, plugins: Plugins
) -> None:
    rows = [{"question": f"file {i}", "answer": f"path of name {i % 50}"} for i in range(60)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    facts = read_data_facts(recognise_data(str(tmp_path / "faq.jsonl")), bert, plugins)
    first, columns, *examples = facts.preview()
    assert (facts.rows, facts.queries, facts.documents) == (60, 60, 50)
    assert "60 rows for retrieval: 60 queries, 50 documents" in first
    assert columns == "columns: anchor = question, positive = answer"
    assert examples[0] == "1. file 0 → path of name 0"
    assert len(examples) == 3
    assert not facts.has_negatives
    rows = [{"query": f"a {i}", "pos": [f"b {i}"], "neg": [f"c {i}"]} for i in range(60)]  # type: ignore[dict-item]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert read_data_facts(recognise_data(str(tmp_path / "a.jsonl")), bert, plugins).has_negatives


def test_lengths_are_those_of_the_models_tokenizer_and_a_few_long_texts_decide_nothing(
    tmp_path: Path, bert: Path, plugins: Plugins
) -> None:
    """The tiny tokenizer makes a token of a word, and adds two."""
    facts = read_data_facts(recognise_data(str(write_pairs(tmp_path / "a.csv"))), bert, plugins)
    assert (facts.query_tokens, facts.document_tokens) == (6, 11)
    # Of 60 documents two have 102 tokens: a length of 11 holds 95 % of them whole.
    path = write_pairs(tmp_path / "b.csv", 58)
    path.write_text(path.read_text("utf-8") + 2 * f"a file,{100 * 'file '}\n", "utf-8")
    facts = read_data_facts(recognise_data(str(path)), bert, plugins)
    assert facts.document_tokens == 11


def test_columns_are_read_by_their_names_and_unknown_ones_refused_with_the_option(
    tmp_path: Path, bert: Path, plugins: Plugins
) -> None:
    path = write_pairs(tmp_path / "a.csv", heading="frage,antwort")
    data = recognise_data(str(path), parse_columns(["query=frage,document=antwort"]))
    assert read_data_facts(data, bert, plugins).rows == 60
    hint = r"no column for the query among frage, antwort; write --columns .query=…,document=…"
    with pytest.raises(DataError, match=hint):
        read_data_facts(recognise_data(str(path)), bert, plugins)
    misspelt = parse_columns(["query=frage,document=antwrt"])
    with pytest.raises(DataError, match=r"document names 'antwrt'.* 'antwort'"):
        read_data_facts(recognise_data(str(path), misspelt), bert, plugins)
    path = write_pairs(tmp_path / "b.csv", heading="Question,Answer text")
    hint = (
        r'for the document among Question.*; write --columns "query=Question,document=Answer text"$'
    )
    with pytest.raises(DataError, match=hint):
        read_data_facts(recognise_data(str(path)), bert, plugins)


def test_rows_that_no_training_can_use_are_named(
    tmp_path: Path, bert: Path, plugins: Plugins
) -> None:
    whole = write_pairs(tmp_path / "whole.csv").read_bytes()
    for name, content, words in (
        ("alone", whole + b"lonely,\n,lonely\n", r"(?s):62:.*:63:"),
        ("one", b"text\n" + b"a file\n" * 60, r"one column of texts.*folder of documents"),
        ("same", b"query,document\n" + b"a,%d\n" * 60 % (*range(60),), "only 1 different query; "),
        ("latin", whole + "für,über\n".encode("latin-1"), r"csv:62: .*save the file as UTF-8"),
        ("few", write_pairs(tmp_path / "49.csv", 49).read_bytes(), r"49 different rows.*add some"),
        (
            "scored",
            b"query,document,score\n" + b"".join(b"a %d,b %d,1\n" % (i, i) for i in range(60)),
            "all rows have the score 1,",
        ),
    ):
        (tmp_path / f"{name}.csv").write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_data_facts(recognise_data(str(tmp_path / f"{name}.csv")), bert, plugins)
    enough = recognise_data(str(write_pairs(tmp_path / "50.csv", 50)))
    assert read_data_facts(enough, bert, plugins).rows == 50
    (tmp_path / "twice.csv").write_bytes(whole + whole.partition(b"\n")[2])
    twice = read_data_facts(recognise_data(str(tmp_path / "twice.csv")), bert, plugins)
    assert (twice.rows, twice.smallest_set) == (60, 60)
    assert twice.notes == ("60 rows left out that repeat others",)
    (tmp_path / "empty").mkdir()
    for number in range(60):
        (tmp_path / "empty" / f"{number}.md").write_text("\n", "utf-8")
    with pytest.raises(DataError):
        read_data_facts(recognise_data(str(tmp_path / "empty")), bert, plugins)


def test_documents_are_counted_by_their_passages(
    tmp_path: Path, bert: Path, plugins: Plugins
) -> None:
    for number in range(60):
        (tmp_path / f"{number}.md").write_text(f"# Guide {number}\n\nOpen the file.\n", "utf-8")
    facts = read_data_facts(recognise_data(str(tmp_path)), bert, plugins)
    first, shown, *_ = facts.preview()
    assert facts.rows == 60
    assert facts.sets == ("60 documents",)
    assert "60 passages" in first
    assert shown.startswith("1. Guide 0 → ")
