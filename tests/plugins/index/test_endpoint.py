"""`emberge space MODEL --endpoint URL`: same or different, and why, against a server on this machine."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from safetensors.numpy import load_file, save_file

from tests.support import tiny
from tests.support.chat_server import Wrong
from tests.support.vector_service import PAIRS, SINGLES, misconfigured, open_stock, serving_vectors

Check = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that reads 48 tokens and has prompts."""
    folder = tmp_path_factory.mktemp("served") / "model"
    tiny.checkpoint(folder)
    tiny.write_modules(folder, 32, max_length=48)
    _spread(folder)
    settings = {
        "prompts": {"query": "who data ", "document": "merge "},
        "similarity_fn_name": "cosine",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def _spread(folder: Path, factor: float = 6.0) -> None:
    """Enlarge the layers, so that a state depends on the other tokens as in a trained model."""
    weights = load_file(folder / "model.safetensors")
    for name, values in weights.items():
        if name.endswith(("dense.weight", "query.weight", "key.weight", "value.weight")):
            weights[name] = values * factor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def sibling(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the family, with the same prompts."""
    other = tmp_path_factory.mktemp("served") / "sibling"
    tiny.checkpoint(other, like=folder, noise=0.7, seed=5)
    tiny.write_modules(other, 32, max_length=48)
    name = "config_sentence_transformers.json"
    (other / name).write_text((folder / name).read_text())
    return other


@pytest.fixture
def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the verb; return its exit code and what it printed."""

    def done(url: str, *words: str, model: Path = folder) -> tuple[int, str]:
        code = main(["space", str(model), "--endpoint", url, *words])
        told = capsys.readouterr()
        return code, told.out + told.err

    return done


def _always(wrong: Wrong) -> Callable[[list[str]], Wrong]:
    return lambda _: wrong


# ── verdicts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["openai", "tei", "ollama"])
def test_a_right_server_is_the_same_in_each_form(folder: Path, check: Check, form: str) -> None:
    with serving_vectors(misconfigured(folder, ()), [form]) as service:
        code, told = check(service.url)
    assert code == 0, told
    assert "same: the server's vectors are the model's" in told
    assert "is rounding" not in told
    assert f"34 texts, {open_stock(folder).get_embedding_dimension()} numbers" in told
    path, fields = service.requests[-1]
    assert service.url + path in told
    if form != "tei":
        assert fields["model"] == folder.name
    paths = list(dict.fromkeys(path for path, _ in service.requests))
    tried = {"openai": 1, "tei": 2, "ollama": 3}[form]
    assert paths == ["/v1/embeddings", "/embed", "/api/embed"][:tried]


@pytest.mark.parametrize("fault", SINGLES)
def test_each_fault_of_a_server_is_named(
    folder: Path, sibling: Path, check: Check, tmp_path: Path, fault: str
) -> None:
    _require_named(folder, sibling, check, tmp_path, [fault])


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_faults_are_named_together(
    folder: Path, sibling: Path, check: Check, tmp_path: Path, pair: tuple[str, str]
) -> None:
    _require_named(folder, sibling, check, tmp_path, pair)


def _require_named(
    folder: Path, sibling: Path, check: Check, tmp_path: Path, faults: Sequence[str]
) -> None:
    words = ["--json", str(tmp_path / "found.json"), "--candidates", str(sibling)]
    served = list(faults)
    if "prompt_doubled" in faults:
        # The client sends the prompt, and the server adds it again.
        words.append("--send-prompts")
        served.remove("prompt_doubled")
    embed = misconfigured(folder, served, other=sibling)
    with serving_vectors(embed) as service:
        code, told = check(service.url, *words)
    found = json.loads((tmp_path / "found.json").read_text())
    assert sorted(cause["name"] for cause in found["causes"]) == sorted(faults), told
    assert code == 4
    assert found["verdict"] == "different"
    assert found["explained"] < 0.0632
    for cause in found["causes"]:
        assert f"{cause['name']}: {cause['words']}" in told
    if "truncation_length" in faults:
        assert "32 tokens of a text were read, and the model reads 48" in told
    if "prefix" in faults:
        assert "the first 16 of 32 numbers" in told


def test_bits_are_named(folder: Path, check: Check) -> None:
    with serving_vectors(misconfigured(folder, ["bits"])) as service:
        code, told = check(service.url)
    assert code == 4
    assert "precision: vectors are bits (eight in a byte) in place of numbers" in told


def test_another_tokenizer_is_named(folder: Path, check: Check, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny.checkpoint(other)
    content = json.loads((other / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    words = [word for word in vocabulary if word.isalpha()]
    turned = dict(zip(words, [vocabulary[word] for word in words[::-1]], strict=True))
    content["model"]["vocab"] = {**vocabulary, **turned}
    (other / "tokenizer.json").write_text(json.dumps(content))
    with serving_vectors(misconfigured(folder, ["tokenizer"], other=other)) as service:
        code, told = check(service.url, "--candidates", str(other))
    assert code == 4
    assert f"tokenizer: the tokenizer was that of {other.name};" in told


def test_the_right_candidate_is_named(
    folder: Path, sibling: Path, check: Check, tmp_path: Path
) -> None:
    """A candidate may have one token more than the model's table of embeddings, and another size."""
    larger = tmp_path / "larger"
    tiny.checkpoint(larger, hidden_size=16, vocab_size=_count_tokens(folder) + 1)
    content = json.loads((larger / "tokenizer.json").read_text())
    content["model"]["vocab"]["mat"] = _count_tokens(folder)
    (larger / "tokenizer.json").write_text(json.dumps(content))
    with serving_vectors(misconfigured(sibling, ())) as service:
        code, told = check(service.url, "--candidates", str(larger), str(sibling))
    assert code == 4
    assert f"model: the vectors are those of {sibling.name};" in told


def _count_tokens(folder: Path) -> int:
    return len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])


@pytest.mark.parametrize("makes_lower_case", [True, False])
def test_case_is_told_of_each_kind_of_tokenizer(
    folder: Path, check: Check, tmp_path: Path, makes_lower_case: bool
) -> None:
    """A tokenizer may make texts lower case by a normaliser of its own, or not at all."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    content = json.loads((model / "tokenizer.json").read_text())
    cased = {**content["normalizer"], "lowercase": False}
    lower = {"type": "Sequence", "normalizers": [cased, {"type": "Lowercase"}]}
    content["normalizer"] = lower if makes_lower_case else cased
    (model / "tokenizer.json").write_text(json.dumps(content))
    right = misconfigured(model, ())
    with serving_vectors(right) as service:
        assert check(service.url, model=model)[0] == 0
    wrong = misconfigured(model, ["case"])
    if not makes_lower_case:
        wrong = lambda texts: right([text.lower() for text in texts])  # noqa: E731
    with serving_vectors(wrong) as service:
        code, told = check(service.url, model=model)
    assert code == 4
    words = "upper case was kept" if makes_lower_case else "texts were made lower case"
    assert f"case: {words}" in told


def test_queries_are_checked_with_their_prompt(folder: Path, check: Check) -> None:
    model = open_stock(folder)
    with serving_vectors(lambda texts: model.encode(texts, prompt="who data ")) as service:
        assert check(service.url, "--queries")[0] == 0
        code, told = check(service.url)
    assert code == 4
    assert (
        "prompt_of_other_side: texts were embedded with the prompt of the other side, 'who data '"
        in told
    )
    with serving_vectors(lambda texts: model.encode(texts, prompt="")) as service:
        assert check(service.url, "--queries", "--send-prompts")[0] == 0
        assert check(service.url, "--send-prompts")[0] == 0
        assert check(service.url)[0] == 4


def test_a_fault_that_no_cause_explains_is_said_to_be_one(
    folder: Path, sibling: Path, check: Check, tmp_path: Path
) -> None:
    with serving_vectors(misconfigured(sibling, ())) as service:
        code, told = check(service.url)
    assert code == 4
    assert "% of a vector's length apart (6.3% is rounding)" in told
    assert "none of the causes that were tried explains it" in told
    assert "--candidates" in told
    wide = np.random.default_rng(0).standard_normal((34, 48))
    with serving_vectors(lambda texts: wide[: len(texts)]) as service:
        code, told = check(service.url, "--json", str(tmp_path / "found.json"))
    assert code == 4
    assert "48 numbers: the model's vectors are shorter" in told
    assert json.loads((tmp_path / "found.json").read_text())["distance"] is None


def test_a_passport_alone_tells_same_or_different(
    folder: Path, check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passport = tmp_path / "kept.json"
    assert main(["space", str(folder), "--json", str(passport)]) == 0
    capsys.readouterr()
    for faults, code, words in (
        ([], 0, "same"),
        (["truncation_length"], 4, "a passport alone tells no more; give the model"),
        (["prompt_of_other_side"], 4, "prompt_of_other_side: "),
        (["prefix"], 4, "prefix: vectors have the first 16 of 32 numbers"),
        (["normalisation"], 4, "normalisation: "),
    ):
        with serving_vectors(misconfigured(folder, faults)) as service:
            found, told = check(service.url, model=passport)
        assert (found, words in told) == (code, True), told


def test_a_passport_with_canaries_spares_loading_the_model(
    folder: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberge_encoder import TextEncoder

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert main(["space", str(copy)]) == 0
    loads = []
    load = TextEncoder.load
    monkeypatch.setattr(
        TextEncoder, "load", lambda *a, **options: loads.append(1) or load(*a, **options)
    )
    with serving_vectors(misconfigured(folder, ())) as service:
        assert check(service.url, model=copy)[0] == 0
    assert not loads
    with serving_vectors(misconfigured(folder, ["pooling"])) as service:
        assert check(service.url, model=copy)[0] == 4
    assert loads


def test_a_passport_without_the_canaries_of_a_side_needs_the_model(
    folder: Path, check: Check, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert main(["space", str(copy)]) == 0
    passport = copy / "space.json"
    content = json.loads(passport.read_text())
    for side in ("query", "long query"):
        del content["canaries"]["float16"][side]
    passport.write_text(json.dumps(content))
    alone = tmp_path / "alone.json"
    shutil.copy(passport, alone)
    model = open_stock(folder)
    with serving_vectors(lambda texts: model.encode(texts, prompt="who data ")) as service:
        assert check(service.url, "--queries", model=copy)[0] == 0
        code, told = check(service.url, "--queries", model=alone)
    assert code == 2
    assert "the passport has no vectors of canaries for this side" in told
    del content["canaries"]
    alone.write_text(json.dumps(content))
    with serving_vectors(misconfigured(folder, ())) as service:
        code, told = check(service.url, model=alone)
    assert code == 2
    assert "the passport has no vectors of canaries for this side" in told


def test_texts_that_the_server_refuses_are_told(folder: Path, check: Check) -> None:
    embed = misconfigured(folder, ())

    def strict(texts: list[str]) -> Any:
        long = any(len(text) > 3000 for text in texts)
        return Wrong(413, b'{"error": "must have less than 512 tokens"}') if long else embed(texts)

    with serving_vectors(strict) as service:
        code, told = check(service.url)
    assert code == 0, told
    assert "33 texts" in told
    assert "refused, so how it is cut is not known: '1234567890" in told
    assert "must have less than 512 tokens" in told
    with serving_vectors(
        lambda texts: Wrong(422, b"too short") if "bonjour" in texts else embed(texts)
    ) as service:
        code, told = check(service.url)
    assert code == 0, told
    assert "33 texts" in told
    assert "'bonjour': 422: too short" in told


# ── answers that are none ───────────────────────────────────────────────────────────────────────


def _rows(texts: list[str]) -> list[list[float]]:
    return [[0.6, 0.8] for _ in texts]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda texts: [[math.nan, 1.0] for _ in texts], "a vector has nan among its numbers"),
        (lambda texts: [[1.0, math.inf] for _ in texts], "a vector has inf among its numbers"),
        (lambda texts: [[1.0, "0.5"] for _ in texts], "a vector has '0.5' among its numbers"),
        (lambda texts: [[1.0, None] for _ in texts], "a vector has None among its numbers"),
        (lambda texts: [[1.0, True] for _ in texts], "a vector has True among its numbers"),
        (lambda texts: [[10**400, 1] for _ in texts], "a vector has 1000000"),
        (lambda texts: ["AAAA" for _ in texts], "a vector of its answer is 'AAAA', no list"),
        (lambda texts: [[] for _ in texts], "a vector of its answer is [], no list"),
        (lambda texts: _rows(texts)[1:], "answers 8 texts by 7 vectors"),
        (lambda texts: [*_rows(texts), [1.0, 2.0]], "answers 8 texts by 9 vectors"),
        (
            lambda texts: [[1.0] * (2 + i % 2) for i, _ in enumerate(texts)],
            "its vectors have 2 to 3 numbers",
        ),
        (
            _always(Wrong(body=b"<html>hello</html>")),
            "its answer is no list of vectors: <html>",
        ),
        (_always(Wrong(body=b'{"data": {}}')), "its answer is no list of vectors"),
        (_always(Wrong(body=b"[" * 100_000)), "its answer is no list of vectors"),
        (
            _always(Wrong(body=b'{"data": [{"index": 0}, {"index": 0}]}')),
            "its answer is no list of vectors",
        ),
    ],
)
def test_answers_that_are_no_vectors_are_refused(
    check: Check, answer: Callable[[list[str]], Any], words: str
) -> None:
    with serving_vectors(answer, ["openai"]) as service:
        code, told = check(service.url, "--api", "openai")
    assert code == 2, told
    assert words in told
    assert f"{service.url}/v1/embeddings" in told


def test_a_server_that_refuses_all_is_an_error_with_its_words(check: Check) -> None:
    with serving_vectors(_always(Wrong(422, b"unknown model"))) as service:
        code, told = check(service.url)
    assert code == 1
    assert "refuses every text: 422: unknown model" in told


def test_a_server_that_is_not_there_or_has_no_such_page_is_an_error(check: Check) -> None:
    with serving_vectors(_rows, []) as service:
        code, told = check(service.url)
        assert code == 1
        assert "404" in told
        assert "name the whole address, the form by --api, or the model" in told
        whole = check(f"{service.url}/other/embeddings", "--api", "tei")
        assert whole[0] == 1
        assert service.requests[-1][0] == "/other/embeddings"
    code, told = check(service.url)
    assert code == 1
    assert service.url.partition("://")[2] in told


def test_a_slow_server_is_not_waited_for(check: Check) -> None:
    with serving_vectors(_always(Wrong(seconds=2.0))) as service:
        code, told = check(service.url, "--timeout", "0.3")
    assert code == 1
    assert "no answer in 0.3 s; wait longer by --timeout" in told


def test_a_busy_server_is_asked_again(folder: Path, check: Check) -> None:
    embed, asked = misconfigured(folder, ()), []

    def busy(texts: list[str]) -> Any:
        asked.append(texts)
        return Wrong(503, b"starting") if len(asked) == 1 else embed(texts)

    with serving_vectors(busy) as service:
        assert check(service.url)[0] == 0
    with serving_vectors(_always(Wrong(503, b"starting"))) as service:
        code, told = check(service.url)
    assert code == 1
    assert "the server answers 503: starting (3 times)" in told


def test_keys_are_sent_and_never_printed(
    folder: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with serving_vectors(misconfigured(folder, ())) as service:
        assert check(service.url, "--key", "MY_KEY")[0] == 0
    assert set(service.keys) == {"Bearer sk-very-secret"}
    for status, body in ((401, b"no"), (400, b"sk-very-secret"), (500, b"sk-very-secret")):
        with serving_vectors(_always(Wrong(status, body))) as service:
            code, told = check(service.url, "--key", "MY_KEY")
        assert code == 1
        assert "secret" not in told
    code, told = check("https://example.invalid", "--key", "sk-very-secret")
    assert code == 2
    assert "secret" not in told
    assert "--key" in told or "environment variable" in told


def test_a_key_is_hidden_however_it_is_written(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-\\secret\"one'two"
    monkeypatch.setenv("MY_KEY", key)
    for body in (key.encode(), json.dumps({"error": key}).encode(), b"x" * 190 + key.encode()):
        with serving_vectors(_always(Wrong(400, body))) as service:
            told = check(service.url, "--key", "MY_KEY")[1]
        assert "secret" not in told
        assert "sk-" not in told
    with serving_vectors(lambda texts: [[1.0, key] for _ in texts]) as service:
        assert "secret" not in check(service.url, "--key", "MY_KEY")[1]


def test_a_candidate_that_cannot_be_opened_is_told_before_a_request(
    folder: Path, check: Check, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    tiny.checkpoint(broken)
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer_config.json").unlink()
    with serving_vectors(misconfigured(folder, ())) as service:
        code, told = check(service.url, "--candidates", str(broken))
    assert (code, service.requests) == (2, [])
    assert "tokenizer" in told


def test_options_that_say_nothing_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert main(["space", str(folder), *words]) == 2
        return capsys.readouterr().err

    assert "--send-prompts is for a server; name its address by --endpoint" in told(
        "--send-prompts"
    )
    assert "--queries is for a server or for stored vectors" in told("--queries")
    assert "--candidates is for a server or for stored" in told(str(folder), "--candidates", "a")
    server = ["--endpoint", "http://localhost:1"]
    assert "the second model is not for a server" in told(str(folder), *server)
    assert "--sample is not for a server" in told("--sample", "5", *server)
    assert "--texts is for stored vectors; give --texts and --vectors" in told("--texts", "a.txt")
    assert "--vectors is for stored vectors; give --texts" in told("--vectors", "a.npy")


# ── the checker of one file ─────────────────────────────────────────────────────────────────────


def _run_checker(passport: Path, url: str, *words: str) -> tuple[int, str]:
    """Run the script without any installed package."""
    script = Path(__file__).parents[3] / "docs" / "reference" / "check_space.py"
    command = [sys.executable, "-I", "-S", str(script), str(passport), url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_checker_of_one_file_agrees_with_the_verb(folder: Path, tmp_path: Path) -> None:
    passport = tmp_path / "space.json"
    assert main(["space", str(folder), "--json", str(passport)]) == 0
    for faults, code, words in (
        ([], 0, "same: at most 0.0"),
        (["truncation_length"], 4, "different: at most "),
        (["prompt_missing"], 4, "different: at most "),
        (["prefix"], 1, "its vectors have 16 numbers, and the model's 32"),
    ):
        with serving_vectors(misconfigured(folder, faults)) as service:
            for path in ("/v1/embeddings", "/embed", "/api/embed"):
                found, told = _run_checker(passport, service.url + path, "--model", "boom")
                assert (found, words in told) == (code, True), told
    model = open_stock(folder)
    with serving_vectors(lambda texts: model.encode(texts, prompt="")) as service:
        url = f"{service.url}/embed"
        assert _run_checker(passport, url, "--queries", "--send-prompts")[0] == 0
        assert _run_checker(passport, url, "--send-prompts")[0] == 0
        assert _run_checker(passport, url, "--queries")[0] == 4
    with serving_vectors(lambda texts: [[math.nan] * 32 for _ in texts]) as service:
        code, told = _run_checker(passport, f"{service.url}/embed")
    assert (code, "zero or not finite" in told) == (1, True)


def test_the_checker_of_one_file_needs_canaries(folder: Path, tmp_path: Path) -> None:
    passport = tmp_path / "space.json"
    assert main(["space", str(folder), "--json", str(passport)]) == 0
    content = json.loads(passport.read_text())
    del content["canaries"]
    passport.write_text(json.dumps(content))
    code, told = _run_checker(passport, "http://localhost:1/embed")
    assert (code, "has no canaries" in told) == (1, True)
    passport.write_text("{}")
    assert _run_checker(passport, "http://localhost:1/embed")[0] == 1
