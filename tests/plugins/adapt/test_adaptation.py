"""`emberge adapt` from pairs to a model: run as a user runs it, with a tiny random encoder as the base."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from emberge.cli.main import main
from emberge_adapt import adapt
from emberge_evaluate import probe_sets

from tests.support import tiny
from tests.support.tiny import WORDS


def write_pairs(path: Path, count: int, seed: int = 0) -> Path:
    """Write pairs whose documents share most words with their queries."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["frage", "antwort"])
        for _ in range(count):
            words = draw.sample(WORDS, 4)
            table.writerow([" ".join(words), " ".join([*words[:3], *draw.sample(WORDS, 4)])])
    return path


class Run:
    """A finished call of `emberge adapt`: its words, exit code, output and OUT."""

    def __init__(self, words: list[str], out: Path) -> None:
        self.words, self.out = words, out
        self.code, self.text = self.repeat()

    def repeat(self, *words: str) -> tuple[int, str]:
        """Call it again, with more words."""
        shown = StringIO()
        with redirect_stdout(shown):
            code = main([*self.words, *words])
        return code, shown.getvalue()


def adapted(bert: Path, folder: Path, count: int, *more: str) -> Run:
    pairs = write_pairs(folder / "pairs.csv", count)
    words = ["adapt", str(pairs), "--columns", "query=frage,document=antwort"]
    return Run([*words, "--model", str(bert), *more, "--out", str(folder / "out")], folder / "out")


@pytest.fixture(scope="module")
def few_probes() -> Iterator[None]:
    """Of the evaluation sets that every machine has two, which are read in a moment."""
    sources = {name: probe_sets._SOURCES[name] for name in ("places", "things")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_sets, "_SOURCES", sources)
        yield


@pytest.fixture(scope="module")
def run(bert: Path, few_probes: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return adapted(bert, tmp_path_factory.mktemp("adapt"), 300, "--effort", "quick")


@pytest.fixture(scope="module")
def large(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run as it is by default, and with a student."""
    return adapted(bert, tmp_path_factory.mktemp("adapt"), 300, "--small")


def test_it_ends_with_a_model_that_loads_and_a_screen(run: Run) -> None:
    from sentence_transformers import SentenceTransformer

    assert run.code in (0, 3)
    assert f"model       {run.out / 'model'}" in run.text
    vectors = SentenceTransformer(str(run.out / "model"), device="cpu").encode(["open a file"])
    assert vectors.shape[0] == 1
    assert (run.out / "report" / "report.html").is_file()
    assert (run.out / "model" / "README.md").is_file()
    # Base and training are members of the merge.
    artifact = json.loads((run.out / "model" / "artifact.json").read_text("utf-8"))
    assert artifact["parents"][0] == "$trained"
    assert len(artifact["parents"]) == 2


def test_what_was_understood_is_told_first(run: Run) -> None:
    lines = run.text.splitlines()
    assert "300 rows for retrieval" in lines[0]
    assert "anchor = frage, positive = antwort" in lines[1]
    assert any("warning: with" in line for line in lines) == ("90 test queries" in run.text)


def test_the_exit_code_is_that_of_the_gate(run: Run) -> None:
    scores = json.loads((run.out / "scores" / "scores.json").read_text("utf-8"))
    met = all(verdict["met"] for verdict in scores["requirements"])
    assert run.code == (0 if met else 3)
    assert any(word in run.text for word in ("no gain", "forgotten")) >= (not met)


@pytest.mark.slow
def test_the_student_has_fewer_layers_and_embeds_texts_nearly_like_the_model(large: Run) -> None:
    from sentence_transformers import SentenceTransformer

    model, small = (
        SentenceTransformer(str(large.out / name), device="cpu") for name in ("model", "small")
    )
    assert len(model[0].auto_model.encoder.layer) == 3  # type: ignore[union-attr]
    assert len(small[0].auto_model.encoder.layer) == 1  # type: ignore[union-attr]
    seen = ["open a file", "sort the list"]
    assert (model.similarity_pairwise(model.encode(seen), small.encode(seen)) > 0.8).all()
    metrics = (large.out / "small" / "metrics.jsonl").read_text("utf-8").splitlines()
    losses = [record["value"] for record in map(json.loads, metrics) if record["name"] == "loss"]
    assert losses[-1] < losses[0]
    page = (large.out / "report" / "report.html").read_text("utf-8")
    assert "small" in page
    lines = large.text.splitlines()
    assert f"small       {large.out / 'small'} (1 of 3 layers)" in lines
    assert any("then a smaller model of the result: 1 of 3 layers" in line for line in lines)
    scores = json.loads((large.out / "scores" / "scores.json").read_text("utf-8"))
    (kept,) = (one for one in scores["requirements"] if one["demand"] == "keeps")
    assert (kept["model"], kept["other"]) == ("small", "model")
    assert kept["text"] in large.text
    assert ("too small" in large.text) == (not kept["met"])


def finished_folders(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_dir() and not path.is_symlink()}


def test_the_printed_recipe_is_the_same_run_and_the_same_command_goes_on(
    run: Run, tmp_path: Path
) -> None:
    """Its steps have the same fingerprints: run into the same OUT, it makes no other folder."""
    code, recipe = run.repeat("--print")
    assert code == 0
    (tmp_path / "adapt.yaml").write_text(recipe, "utf-8")
    before = finished_folders(run.out)
    main(["run", str(tmp_path / "adapt.yaml"), "--out", str(run.out), "--quiet"])
    assert finished_folders(run.out) == before
    # Without the report's result, only the report is made again.
    shutil.rmtree((run.out / "report").resolve())
    (run.out / "report").unlink()
    code, text = run.repeat()
    assert (code, finished_folders(run.out)) == (run.code, before)
    assert (run.out / "report" / "report.html").is_file()
    assert "gain" in text


@pytest.mark.slow
def test_from_python_the_same_call_gives_model_scores_report_and_recipe(
    large: Run, bert: Path
) -> None:
    folder = large.out.parent
    result = adapt(
        folder / "pairs.csv",
        out=large.out,
        model=str(bert),
        columns={"query": "frage", "document": "antwort"},
        small=True,
        quiet=True,
    )
    assert Path(result) == Path(result.model) == large.out / "model"
    assert {"model", "trained", "small"} < set(result.scores["model"])
    assert result.small == str(large.out / "small")
    assert result.report.name == "report.html"
    assert result.recipe.read_text("utf-8") == large.repeat("--print")[1]
    assert result.load(device="cpu").encode(["open a file"]).shape[0] == 1
    assert str(result) in large.text
    assert "gain" in result._repr_html_()


def refuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command that must be refused before any work."""
    assert main(["adapt", *words]) == 2
    return capsys.readouterr().err


def test_a_model_that_is_no_encoder_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.csv", 60)
    (tmp_path / "classifier").mkdir()
    (tmp_path / "classifier" / "config.json").write_text('{"model_type": "vit"}', "utf-8")
    words = [str(pairs), "--model", str(tmp_path / "classifier"), "--out", str(tmp_path / "out")]
    assert "classifier" in refuse(words, capsys)
    assert not (tmp_path / "out").exists()


def write_albert(folder: Path) -> Path:
    """Write a model whose layers share one set of weights."""
    import transformers

    size = tiny.write_tokenizer(folder)
    tiny.write_modules(folder, 32)
    config = transformers.AlbertConfig(
        vocab_size=size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    transformers.AlbertModel(config).save_pretrained(folder)
    return folder


def test_layers_that_cannot_be_cut_are_refused_before_any_work(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.csv", 60)
    words = [str(pairs), "--columns", "query=frage,document=antwort", "--out"]
    words += [str(tmp_path / "out"), "--model"]
    albert = write_albert(tmp_path / "albert")
    error = refuse([*words, str(albert), "--small"], capsys)
    assert "layers share weights" in error
    assert "--small static" in error
    assert main(["adapt", *words, str(albert), "--small", "static", "--print"]) == 0
    capsys.readouterr()
    assert "it has 3" in refuse([*words, str(bert), "--small", "7"], capsys)
    assert "name fewer" in refuse([*words, str(bert), "--small", "3"], capsys)
    assert not (tmp_path / "out").exists()


def test_a_value_that_is_no_student_is_refused_though_data_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refuse(["--small", str(tmp_path / "pairs.csv")], capsys)
    assert "pairs.csv" in error
    assert "DATA is written before it" in error


@pytest.mark.slow
def test_a_static_student_reads_pairs_and_documents(tmp_path: Path, bert: Path) -> None:
    from sentence_transformers import SentenceTransformer

    pairs = write_pairs(tmp_path / "pairs.csv", 150)
    rows = [json.dumps({"text": f"{word} of the {word}"}) for word in WORDS]
    (tmp_path / "docs.jsonl").write_text("\n".join(rows), "utf-8")
    result = adapt(
        pairs,
        out=tmp_path / "out",
        model=str(bert),
        effort="quick",
        columns={"query": "frage", "document": "antwort"},
        documents=tmp_path / "docs.jsonl",
        small="static",
        quiet=True,
    )
    assert result.small is not None
    model = SentenceTransformer(result.small, device="cpu")
    assert type(model[0]).__name__ == "StaticEmbedding"
    assert "(one vector for each token)" in str(result)
    card = (Path(result.small) / "README.md").read_text("utf-8")
    assert "| Dimension | 32 |" in card
    assert "| Longest text | any |" in card
    read = json.loads((tmp_path / "out" / "tokens" / "artifact.json").read_text("utf-8"))
    rows_read = read["details"]["static"]["counted_texts"]
    assert rows_read > len(WORDS) + 2 * 50


def test_what_is_missing_or_of_no_use_is_named_before_any_work(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = str(write_pairs(tmp_path / "pairs.csv", 60))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.md").write_text("open\n", "utf-8")
    (tmp_path / "docs.jsonl").write_text('{"text": "open"}\n{"text": " "}\n', "utf-8")
    asked = [pairs, "--columns", "query=frage,document=antwort", "--model", str(bert)]
    for words, *named in (
        ([pairs, "--model", "nobody/nothing", "--print"], "nobody/nothing", "--model"),
        ([pairs, "--effort", "thorogh"], "did you mean 'thorough'"),
        (asked, "--out"),
        ([*asked, "--test", str(tmp_path / "real.csv"), "--print"], "real.csv"),
        (
            [*asked, "--test", str(tmp_path / "pages"), "--print"],
            "pages: has documents and no queries",
        ),
        ([*asked, "--documents", str(tmp_path / "docs.jsonl"), "--print"], "docs.jsonl:2:"),
        (
            [*asked, "--documents", str(tmp_path / "pages"), "--print"],
            "pages: further documents are in one file",
        ),
    ):
        error = refuse(words, capsys)  # type: ignore[arg-type]
        assert [word for word in named if word not in error] == []


@pytest.mark.parametrize(("name", "mined"), [("docs.jsonl", True), ("docs.txt", False)])
def test_further_documents_are_searched_and_rows_of_them_mined(
    tmp_path: Path, bert: Path, name: str, mined: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.csv", 300)
    (tmp_path / name).write_text('{"text": "open"}\n', "utf-8")
    words = [str(pairs), "--columns", "query=frage,document=antwort", "--model", str(bert)]
    words += ["--documents", str(tmp_path / name), "--effort", "thorough"]
    assert main(["adapt", *words, "--print"]) == 0
    recipe = capsys.readouterr().out
    assert f"documents: {tmp_path / name}" in recipe
    assert (f"corpus: {tmp_path / name}" in recipe) == mined


def test_further_documents_of_a_beir_set_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its test searches its corpus alone, so that they would be ignored."""
    (tmp_path / "library" / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "../more.jsonl"):
        (tmp_path / "library" / name).write_text("", "utf-8")
    words = [str(tmp_path / "library"), "--documents", str(tmp_path / "more.jsonl")]
    assert "library instead" in refuse(words, capsys)
