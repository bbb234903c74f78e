"""The `drawn_media` step: images and sounds that are drawn by number, with captions, to train and search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

from emberge import Artifact, ArtifactKind, Count, NumberRange, Preflight, Problem, Step, Workspace
from emberge.data import even_place, write_entries, write_json_rows

from emberge_demo.drawings import Drawing, Draws
from emberge_demo.tones import Tones

_Content = Drawing | Tones
# By the name of a training set: what its media show, and the words for both sides in names of sets.
_SETS: Mapping[str, tuple[type[_Content], str]] = {
    "drawings": (Drawing, "images"),
    "tones": (Tones, "clips"),
}
_COMMON = {"task": "retrieval", "language": "en", "instruction": ""}


@dataclass(frozen=True, kw_only=True)
class DrawnMedia(Step):
    """Drawn images and synthetic sounds with captions, of which a model has to learn what the words mean.

    `drawings` are images of one to four shapes of a colour ("two red circles"), `tones` are clips of a second
    with one to four beeps of a rhythm, a sound and a pitch ("three quick soft high beeps"). Sizes, places,
    loudness and the exact pitch are drawn from the recipe's seed: the same bytes on every machine. A share
    `held_out` of what a caption can be is in no training pair, and both directions of search are tested on
    it: `images_to_texts`, `texts_to_images`, `clips_to_texts`, `texts_to_clips`. Images have 64 x 64 pixels.

    With `paired: false` the captions of the training pairs are shuffled among the media, and the tests stay
    as they are: a control that shows what a model scores without having seen what belongs together.

    Example:
        drawn:
          drawn_media: {copies: 6}
    """

    copies: Count = 6
    """Images, and clips, of each caption that is trained on."""
    test_copies: Count = 2
    """Images, and clips, of each caption that is tested on."""
    held_out: Annotated[float, NumberRange(above=0, below=1)] = 0.25
    """Share of the captions that no training pair has."""
    paired: bool = True

    produces: ClassVar[ArtifactKind] = "data"

    def check(self, context: Preflight) -> Iterator[Problem]:
        if find_spec("PIL") is None:
            yield context.problem("images are drawn with Pillow: pip install pillow")

    def run(self, workspace: Workspace) -> Artifact:
        """Draw the media and write training pairs, evaluation sets and their catalogue."""
        catalogue: dict[str, Any] = {"train": [], "eval": []}
        for number, (name, (contents, word)) in enumerate(_SETS.items()):
            workspace.progress(number, len(_SETS), "sets", name)
            drawn = _Drawn(self, workspace, word)
            train, test = self._halves(sorted(contents.all()))
            catalogue["train"].append(drawn.training(name, train))
            catalogue["eval"] += drawn.searches(test)
        write_entries(workspace.folder, catalogue)
        return Artifact(
            kind="data",
            size=sum(entry["rows"] for entry in catalogue["train"]),
            details={"rows": {entry["name"]: entry["rows"] for entry in catalogue["train"]}},
        )

    def _halves(self, contents: Sequence[_Content]) -> tuple[list[_Content], list[_Content]]:
        """Return what is trained on and what is tested on, the same for every seed."""
        ranked = sorted(contents, key=lambda one: even_place("held out", one.caption))
        held = min(len(ranked) - 1, max(1, round(self.held_out * len(ranked))))
        return ranked[held:], ranked[:held]


@dataclass(frozen=True)
class _Drawn:
    """Writer of one kind of media into a step's folder."""

    options: DrawnMedia
    workspace: Workspace
    word: str

    def training(self, name: str, contents: Sequence[_Content]) -> Mapping[str, Any]:
        """Write the training pairs, and return their entry of the catalogue."""
        copies = [(one, copy) for copy in range(self.options.copies) for one in contents]
        copies = copies[: self._rows]
        captions = [one.caption for one, _ in copies]
        if not self.options.paired:
            captions = [captions[place] for place in self._shuffled(len(captions))]
        rows = [
            {"query": self._media("train", one, copy), "pos": [caption], "neg": []}
            for (one, copy), caption in zip(copies, captions, strict=True)
        ]
        path = f"train/{name}.jsonl"
        count = write_json_rows(self.workspace.folder / path, rows)
        return {"name": name, "file": path, **_COMMON, "symmetric": True, "rows": count}

    def searches(self, contents: Sequence[_Content]) -> Iterator[Mapping[str, Any]]:
        """Write the set of each direction, and yield its entry of the catalogue."""
        contents = contents[: self._rows]
        copies = [(one, copy) for one in contents for copy in range(self.options.test_copies)]
        captions = {one: f"t{number}" for number, one in enumerate(contents)}
        media = {pair: f"{self.word[0]}{number}" for number, pair in enumerate(copies)}
        for name, asked in (
            (f"{self.word}_to_texts", True),
            (f"texts_to_{self.word}", False),
        ):
            folder = f"eval/{name}"
            texts = [{"_id": captions[one], "text": one.caption} for one in contents]
            # Each set has its own files, so that its folder is all of it.
            files = [
                {"_id": media[one, copy], "text": self._media(folder, one, copy)}
                for one, copy in copies
            ]
            queries, corpus = (files, texts) if asked else (texts, files)
            for stem, rows in (("queries", queries), ("corpus", corpus)):
                write_json_rows(self.workspace.folder / folder / f"{stem}.jsonl", rows)
            pairs = [(media[one, copy], captions[one]) for one, copy in copies]
            judged = [f"{one}\t{two}\t1" for one, two in (p if asked else p[::-1] for p in pairs)]
            text = "\n".join(["query-id\tcorpus-id\tscore", *judged, ""])
            place = self.workspace.folder / folder / "qrels.tsv"
            place.write_text(text, encoding="utf-8", newline="\n")
            counted = {"corpus": len(corpus), "queries": {"test": len(queries)}}
            yield {
                "name": name,
                "dir": folder,
                **_COMMON,
                "symmetric": False,
                "domain": "in",
                "metric": "ndcg_at_10",
                **counted,
                "qrels": {"test": len(judged)},
            }

    @property
    def _rows(self) -> int | None:
        return self.workspace.rehearsal.rows if self.workspace.rehearsal else None

    def _media(self, folder: str, one: _Content, copy: int) -> Mapping[str, str]:
        """Write one image or clip, and return the cell of a row that names it."""
        half = "train" if folder == "train" else "test"
        draws = Draws((str(self.workspace.seed), half, one.caption, str(copy)))
        name = f"{self.word}/{one.caption.replace(' ', '_')}_{copy}.{one.ending}"
        place = self.workspace.folder / folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(one.content(draws))
        return {one.kind: name}

    def _shuffled(self, count: int) -> list[int]:
        seed = str(self.workspace.seed)
        return sorted(range(count), key=lambda row: even_place("unpaired", seed, str(row)))
