"""Ancestors of a model to publish: adapters, cards of a hub, and licences that nobody states."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError, EncoderFacts, RecipeError
from emberge.contracts import DataOrigin
from emberge.hashes import HashCache
from emberge.model_folder import model_fingerprint
from emberge.results import Parent, Trained
from emberge_publish.ancestors import Ancestors, find_ancestors, is_of_hub, shown_name
from emberge_publish.prepare import (
    _build_board_entry,
    _find_results,
    _find_trained_on,
    _list_notes,
    _read_card,
    _require_model,
)


def result_of(folder: Path, *parents: str, **details: Any) -> Path:
    """Write the record of a model that a step made of the parents."""
    weights = dict.fromkeys(parents, 1.0)
    record = {"kind": "model", "parents": parents, "details": {"weights": weights, **details}}
    folder.mkdir(parents=True)
    (folder / "artifact.json").write_text(json.dumps(record))
    return folder


def card(folder: Path, matter: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\n{matter}\n---\n")
    return folder


def test_an_adapter_is_an_ancestor_beside_its_model(tmp_path: Path) -> None:
    card(tmp_path / "plain", "license: mit\ndatasets: [acme/pairs]")
    card(tmp_path / "adapter", "license: apache-2.0\nbase_model: acme/small")
    soup = result_of(tmp_path / "out" / "soup", "./plain+./adapter", "./plain+acme/tuned")
    hub = card(tmp_path / "hub", "license: cc0-1.0\nlanguage: [en, de]")
    asked = []

    def fetch(name: str, revision: str | None) -> Path:
        asked.append((name, revision))
        return hub

    found = find_ancestors(soup, tmp_path, {"./plain": "isc"}, fetch)
    adapter = Parent("./adapter", licence="apache-2.0", bases=("acme/small",), card=True)
    tuned = Parent(
        "acme/tuned", licence="cc0-1.0", languages=("en", "de"), bases=("acme/tuned",), card=True
    )
    names = [one.name for one in found.models]
    assert names == ["./plain", "./adapter", "./plain", "acme/tuned"]
    assert found.models[1::2] == (adapter, tuned)
    assert asked == [("acme/tuned", None)], "only what the hub alone knows is asked of it"
    assert found.declared == ("./plain",)
    assert found.licences == {"./plain": "isc", "./adapter": "apache-2.0", "acme/tuned": "cc0-1.0"}
    assert found.bases == ["acme/small", "acme/tuned"]
    assert found.languages == ["en", "de"]
    assert not found.merged
    merge = result_of(tmp_path / "out" / "merge", "./plain", strategy="linear")
    assert find_ancestors(merge, tmp_path, {}, fetch).merged


def test_a_member_that_another_run_trained_is_known_by_its_base_and_its_data(
    tmp_path: Path,
) -> None:
    card(tmp_path / "plain", "license: mit")
    card(tmp_path / "fine", "license: isc")
    licensed = {"task": "retrieval", "rows": 8, "of": 8, "source": {"licence": "cc-by-nc-4.0"}}
    tuned = result_of(
        tmp_path / "earlier" / "tuned",
        "./plain",
        base="./plain",
        base_reference="./plain",
        datasets={"pairs": licensed, "others": {"rows": 4}},
    )
    soup = result_of(tmp_path / "out" / "soup", "./earlier/tuned", "./fine")
    found = find_ancestors(soup, tmp_path, {}, lambda *_: None)
    assert found.licences == {"./fine": "isc", "./plain": "mit"}
    assert {one.name: one.licence for one in found.data} == {
        "pairs": "cc-by-nc-4.0",
        "others": None,
    }
    stated = find_ancestors(soup, tmp_path, {"./earlier/tuned": "mit"}, lambda *_: None)
    assert stated.licences == {"./earlier/tuned": "mit", "./fine": "isc"}
    card(tuned, "license: apache-2.0")
    assert find_ancestors(soup, tmp_path, {}, lambda *_: None).licences == {
        "./earlier/tuned": "apache-2.0",
        "./fine": "isc",
    }


def test_what_is_unknown_is_named_with_the_fix(tmp_path: Path) -> None:
    card(tmp_path / "silent", "datasets: [acme/pairs]")
    card(tmp_path / "fine", "license: mit")
    soup = result_of(tmp_path / "soup", "./silent", "./fine", "acme/far@v2")
    asked = []
    with pytest.raises(CheckpointError) as caught:
        find_ancestors(soup, tmp_path, {}, lambda *one: asked.append(one))
    assert asked == [("acme/far", "v2")]
    silent, far = str(caught.value).split(". Give it")[0].split("; ")
    assert silent == f"{soup}: './silent': its card states no licence, so its licence is unknown"
    assert far.startswith(
        "'acme/far': it has no card that can be found, so its licence and training"
    )
    assert "hf download acme/far README.md" in str(caught.value)
    assert "--licence-of ./silent=apache-2.0" in str(caught.value)
    assert "licences: {./silent: apache-2.0}" in str(caught.value)
    with pytest.raises(RecipeError) as refused:
        find_ancestors(soup, tmp_path, {"./fin": "mit"}, lambda *_: None)
    assert str(refused.value).startswith("--licence-of ./fin: ")
    assert "did you mean './fine'" in str(refused.value)
    assert str(refused.value).endswith("it does to ./silent, ./fine, acme/far")
    with pytest.raises(CheckpointError, match=r"fine: has no artifact\.json.*name the folder"):
        find_ancestors(tmp_path / "fine", tmp_path, {}, lambda *_: None)


def test_a_name_for_others_has_no_place_of_this_machine() -> None:
    names = ["./a/ft", "/models/ft", "~/ft", "acme/ft", "ft"]
    assert [shown_name(name) for name in names] == ["ft", "ft", "ft", "acme/ft", "ft"]
    assert is_of_hub(Parent("acme/ft", bases=("acme/ft",)))
    assert not is_of_hub(Parent("./ft", bases=("acme/ft",)))
    assert not is_of_hub(Parent("./ft"))


# ── what is gathered of them ────────────────────────────────────────────────────────────────────────

REGISTER = {
    "acme/a": frozenset({"NQ"}),
    "acme/b": frozenset({"STS12", "NQ"}),
    "acme/c": frozenset(),
}


def plugins() -> Any:
    class Backbone:
        def describe(self, folder: Path) -> EncoderFacts:
            return EncoderFacts(dimension=7 if (folder / "config.json").exists() else None)

    def found(name: str, kind: str) -> Any:
        assert (name, kind) == ("text_encoder", "backbone")
        return SimpleNamespace(type=Backbone)

    board = SimpleNamespace(tasks_trained_on=REGISTER.get)
    return SimpleNamespace(every=lambda kind: [board] * (kind == "leaderboard"), find=found)


def test_test_sets_are_known_where_the_register_has_any_of_the_bases() -> None:
    assert _find_trained_on(["acme/a", "acme/x", "acme/b"], plugins()) == {"NQ", "STS12"}
    assert _find_trained_on(["acme/c"], plugins()) == frozenset()
    assert _find_trained_on(["acme/x"], plugins()) is None
    assert _find_trained_on([], plugins()) is None


def test_the_board_states_training_data_only_where_all_of_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    repository: Any = SimpleNamespace(name="me/soup", url="https://hub/me/soup")
    terms: Any = SimpleNamespace(licence="mit")
    one, other = (Parent(n, languages=("en",), bases=(n,)) for n in ("acme/a", "acme/b"))
    local = Parent("./ft", bases=("acme/a",))
    known = frozenset({"STS12", "NQ"})

    def board(ancestors: Ancestors, last: frozenset[str] | None = known) -> dict[str, Any]:
        tasks = {o.name: REGISTER.get(o.name, last) for o in ancestors.outside}
        entry = _build_board_entry(
            tmp_path, repository, ancestors, terms, tasks, [Path("r.json")], plugins()
        )
        found = asdict(entry)
        assert len(found.pop("date")) == len("2026-01-01")
        assert found.pop("revision") is None
        return found

    whole = {
        "name": "me/soup",
        "licence": "mit",
        "languages": ["en"],
        "bases": ["acme/a", "acme/b"],
        "dimension": 7,
        "reference": "https://hub/me/soup",
        "trained_on": ["NQ", "STS12"],
        "results": [Path("r.json")],
    }

    def ancestors(*models: Parent, data: tuple[Trained, ...] = ()) -> Ancestors:
        return Ancestors(models, data, outside=models)

    assert board(ancestors(one, other)) == whole
    silent = Trained("own", tasks=None)
    assert board(ancestors(one, other, data=(silent,))) == {**whole, "trained_on": None}
    stated = (Trained("own", tasks=("FiQA2018",)), Trained("mails", tasks=()))
    every = ["FiQA2018", "NQ", "STS12", "mails", "own"]
    assert board(ancestors(one, other, data=stated)) == {**whole, "trained_on": every}
    assert board(ancestors(one, other, data=(*stated, silent)))["trained_on"] is None
    assert board(ancestors(one, other, local))["trained_on"] is None
    unknown = Parent("acme/x", bases=("acme/x",))
    assert board(ancestors(one, unknown), None)["trained_on"] is None
    assert board(Ancestors((one,), outside=(one, local)))["trained_on"] is None
    (tmp_path / "config.json").unlink()
    assert board(ancestors(one, other)) == {**whole, "dimension": None}


def test_the_publisher_is_told_what_only_a_person_can_judge() -> None:
    models = (
        Parent("acme/a", bases=("acme/a",)),
        Parent("/models/ft", datasets=("acme/pairs",)),
        Parent("~/ft"),
        Parent("./ft"),
    )
    data = tuple(
        Trained(licence, origin=DataOrigin(licence=licence))
        for licence in ("cc-by-NC-4.0", "cc-by-nd-4.0", "mit", "ncsa")
    )
    tasks = {
        "acme/a": frozenset({"NQ"}),
        "/models/ft": None,
        "~/ft": None,
        "./ft": frozenset[str](),
    }
    data = (Trained("mails", origin=DataOrigin(personal_data=True)), *data)
    ancestors = Ancestors(models, data, outside=models)
    nc, nd, personal, unknown, placed, both = _list_notes(ancestors, tasks, ["NQ", "STS12"])
    assert personal.startswith("trained on personal data: mails; ")
    assert nc.startswith("the data 'cc-by-NC-4.0' is under cc-by-NC-4.0; ")
    assert nd.startswith("the data 'cc-by-nd-4.0' is under cc-by-nd-4.0; ")
    assert unknown == "training data unknown: ~/ft, ./ft; the card says so"
    assert "folders of this machine (/models/ft, ~/ft); name them relative" in placed
    assert both == "scored on tasks that an ancestor was trained on: NQ"
    first = Ancestors(models[:1], (Trained("plain", tasks=()),), outside=models[:1])
    known = {"acme/a": tasks["acme/a"]}
    assert [*_list_notes(first, known, ["STS12"])] == []
    silent = Ancestors(models[:1], (Trained("plain"),), outside=models[:1])
    (note,) = _list_notes(silent, known, ["STS12"])
    assert note.startswith("no ind_tasks stated for plain, ")


def test_only_results_of_exactly_these_weights_belong_to_a_model(
    bert: Path, tmp_path: Path
) -> None:
    (tmp_path / "soup").symlink_to(bert)
    content = model_fingerprint(bert, HashCache(None))
    for name, kind, models in (
        ("first", "scores", {"so/up": content, "other": "another", "none": content}),
        ("later", "scores", {"soup": content}),
        ("table", "file", {"soup": content}),
    ):
        folder = tmp_path / ".runs" / name
        folder.mkdir(parents=True)
        (tmp_path / name).symlink_to(folder)
        (folder / "artifact.json").write_text(json.dumps({"kind": kind, "details": {}}))
        listed = [{"name": m, "fingerprint": f} for m, f in models.items()]
        scores = {"models": listed, "tasks": [], "scores": {}}
        (folder / "scores.json").write_text(json.dumps(scores))
        for model in models:
            inside = folder / "results" / model.replace("/", "-")
            inside.mkdir(parents=True)
            (inside / f"{name}.json").write_text("{}")
            (inside / "STS12.json").write_text("{}")
    shown = [p.relative_to(tmp_path).as_posix() for p in _find_results(tmp_path / "soup")[0]]
    assert shown == [
        "later/results/soup/STS12.json",
        "first/results/none/first.json",
        "later/results/soup/later.json",
    ]


def test_a_card_is_read_as_text_whatever_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes("é".encode() + b"\xff")
    assert _read_card({"README.md": tmp_path / "README.md"}) == "é�"
    assert _read_card({"model": tmp_path}) == ""


def test_a_model_has_one_of_three_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no model: .*name the folder"):
        _require_model(tmp_path)
    for name in ("modules.json", "config.json", "adapter_config.json"):
        (tmp_path / name).write_text("{}")
        _require_model(tmp_path)
        (tmp_path / name).unlink()
