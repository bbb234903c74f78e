"""The space of one model, with its passport, and the comparison of two."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Backbone, CheckpointError, DataError, ModelRef, RecipeError
from emberge.data import read_texts
from emberge.devices import find_machine
from emberge.files import write_text
from emberge.merging import whole_faults
from emberge.model_folder import hashed_files, model_fingerprint
from emberge.recipes import is_folder, locate_model

from emberge_index.space.canaries import CANARIES, embed_canaries, probe_texts
from emberge_index.space.compare import (
    FitError,
    SpaceVerdict,
    canary_distance,
    fit_error,
    require_passport,
    require_sample,
    verdict_of,
)
from emberge_index.space.passport import (
    PASSPORT,
    Passport,
    has_space,
    passport_of,
    passport_text,
    read_passport,
    write_passport,
)
from emberge_index.vectors import read_vectors

if TYPE_CHECKING:
    from emberge import Encoder, Plugins


# Bytes of weights up to which a model that is published is loaded for its canaries. A larger one gets the
# facts alone, and `emberge space MODEL` embeds its canaries where there is room.
SMALL = 1 << 28
_CODES: dict[SpaceVerdict, int] = {"same": 0, "translatable": 3, "foreign": 4}
# Number of texts that are embedded to check that stored vectors are the model's.
_SAMPLE = 32


def exit_code_of(verdict: SpaceVerdict) -> int:
    """Return the exit code of a comparison."""
    return _CODES[verdict]


def space_at(text: str, options: argparse.Namespace, plugins: Plugins) -> ModelSpace:
    """Return the space of a model (given by its reference) or of a passport (given by its file).

    Raises:
        CheckpointError: if the model cannot be found, or is an adapter.
    """
    device = find_machine(options.devices, options.workers, options.memory).devices[0]
    backbone, path = plugins.find("text_encoder", "backbone").type(), Path(text)
    if path.is_file():
        return ModelSpace(text, None, backbone, device, path)
    is_name = not text.startswith((".", "/", "~")) and path.is_dir()
    model = locate_model(ModelRef(f"./{text}" if is_name else text), plugins)
    if model.adapter is not None:
        raise CheckpointError(f"{text}: an adapter has no space of its own; merge it first")
    return ModelSpace(
        model.name, model.folder, backbone, device, is_users=is_name or is_folder(text)
    )


@dataclass(frozen=True)
class ModelSpace:
    """Embedding space of one model: its folder, or only the passport stored in `file`.

    `is_users` is False for the folder of an installed package or of a cache, where nothing is written.
    """

    name: str
    folder: Path | None
    backbone: Backbone
    device: str = "cpu"
    file: Path | None = None
    is_users: bool = True

    @cached_property
    def passport(self) -> Passport:
        """Current facts, with the stored passport's canary vectors if it describes the same model."""
        if self.folder is None:
            return read_passport(self.file or Path())
        facts = self.backbone.describe(self.folder)
        if facts.problems:
            raise CheckpointError(f"{self.name}: {facts.problems[0]}")
        passport_now = passport_of(self.folder)
        if passport_now.dimension is None:
            passport_now = replace(passport_now, dimension=facts.dimension)
        try:
            stored_passport = read_passport(self.folder)
        except CheckpointError:
            return passport_now
        return (
            replace(passport_now, canaries=stored_passport.canaries)
            if stored_passport == passport_now
            else passport_now
        )

    @cached_property
    def usable_folder(self) -> Path:
        """The model's folder, once it is known that the model can be opened.

        Raises:
            CheckpointError: if only the model's passport is available, or the model cannot be opened.
        """
        if self.folder is None:
            raise CheckpointError(
                f"{self.name}: is a passport without its model, so texts cannot be embedded; name the model, "
                "or give --texts and --vectors, what the index has"
            )
        faults = [*whole_faults(self.folder, None), *self.backbone.describe(self.folder).problems]
        if faults:
            raise CheckpointError("\n".join(faults))
        return self.folder

    @cached_property
    def encoder(self) -> Encoder:
        """The loaded model.

        Raises:
            CheckpointError: as `usable_folder`.
        """
        return self.backbone.load(self.usable_folder, device=self.device, dtype="float32")

    @cached_property
    def with_canaries(self) -> Passport:
        """The passport with canary vectors, which are embedded if none are stored."""
        if self.passport.canaries:
            return self.passport
        canaries = embed_canaries(self.encoder, self.name)
        width = int(canaries["document"].shape[1])
        return replace(self.passport, canaries=canaries, dimension=width)

    def documents(self, texts: Sequence[str]) -> Any:
        """Return the vectors of texts as documents."""
        return self._embed_texts(texts, self.passport.prompts[1])

    def queries(self, texts: Sequence[str]) -> Any | None:
        """Return the vectors of texts as queries; None if the model embeds queries like documents."""
        query, document = self.passport.prompts
        return None if query == document else self._embed_texts(texts, query)

    def _embed_texts(self, texts: Sequence[str], prompt: str) -> Any:
        from emberge.encoding import TextEmbedder

        return TextEmbedder(self.encoder, model=self.name).embed(texts, prompt=prompt)

    def write_passport_file(self, file: Path | None = None) -> Iterator[str]:
        """Write the passport to the file, or into the model's folder; yield its facts as lines.

        Raises:
            RecipeError: if no file is given and the folder is not the user's.
        """
        if file is None and not self.is_users:
            raise RecipeError(
                f"{self.name}: its folder belongs to a package or a cache, where nothing is written; write "
                "the passport to a file by --json space.json"
            )
        passport = self.with_canaries
        yield f"{self.name}: {facts(passport)}"
        if file is not None:
            write_text(file, passport_text(passport))
            yield f"written: {file}"
        elif self.folder is not None:
            yield f"written: {write_passport(self.folder, passport)}"


def published_passport(folder: Path, plugins: Plugins) -> Mapping[str, str]:
    """Return the passport of a model to publish, with canary vectors if the model is small.

    Raises:
        PluginError: if no backbone can load the model.
        CheckpointError: if the model cannot embed.
    """
    files = [file for file in hashed_files(folder) if file.suffix == ".safetensors"]
    weights = sum(file.stat().st_size for file in files)
    if weights > SMALL or not has_space(folder):
        return {}
    space = ModelSpace(folder.name, folder, plugins.find("text_encoder", "backbone").type())
    return {PASSPORT: passport_text(space.with_canaries)}


def facts(passport: Passport) -> str:
    """Return the facts of a passport as text."""
    length = "length one" if passport.normalised else "any length"
    return (
        f"{passport.dimension or 'unknown'} numbers of {length}, {passport.pooling}, "
        f"space {passport.fingerprint[:12]}"
    )


@dataclass(frozen=True)
class SpaceComparison:
    """Comparison of two spaces: the verdict and the numbers behind it."""

    first: str
    second: str
    verdict: SpaceVerdict
    differences: dict[str, tuple[Any, Any]]
    query_prompts: tuple[str, str]
    distance: float | None = None
    query_distance: float | None = None
    fit: FitError | None = None

    def lines(self) -> Iterator[str]:
        """Yield the outcome for the terminal."""
        yield f"A {self.first}, B {self.second}"
        hidden = ("weights", "tokenizer")
        for name, pair in self.differences.items():
            words = "differ" if name in hidden else f"{pair[0]!r} and {pair[1]!r}"
            yield f"  {name}: {words}"
        if self.distance is not None:
            yield f"  {len(CANARIES)} canaries: at most {self.distance:.2%} of a vector's length apart"
        if self.fit is not None:
            without = "" if self.fit.before is None else f" ({self.fit.before:.4f} without a fit)"
            yield (
                f"  a fit on {self.fit.texts} texts: cosine {self.fit.cosine:.4f}{without} on texts it has "
                f"not seen, {self.fit.found:.1%} find themselves"
            )
        if self.query_prompts[0] != self.query_prompts[1]:
            yield f"  queries have other prompts: {self.query_prompts[0]!r} and {self.query_prompts[1]!r}"
        meaning = {
            "same": "vectors of both may be mixed",
            "translatable": "translate the stored vectors, or embed them again; never mix them",
            "foreign": "no map is good enough: embed everything again",
        }
        yield f"{self.verdict}: {meaning[self.verdict]}"

    def plain(self) -> dict[str, Any]:
        """Return the outcome as values of JSON."""
        return asdict(self)


def compare_spaces(
    first: ModelSpace, second: ModelSpace, *, texts: Path | None = None, vectors: Path | None = None
) -> SpaceComparison:
    """Return the comparison of two spaces by their passports, canaries and a fit.

    Raises:
        DataError: if the given vectors are not the first model's.
        CheckpointError: if a model cannot be read.
    """
    probes = read_texts(texts) if texts is not None else probe_texts()
    probes, stored_vectors = _read_stored(first, probes, vectors, is_own=texts is not None)
    differences = first.passport.differences(second.passport)
    comparison = SpaceComparison(
        first.name,
        second.name,
        "same",
        differences,
        (first.passport.prompts[0], second.passport.prompts[0]),
    )
    if not differences:
        return comparison
    canaries = first.with_canaries.canaries, second.with_canaries.canaries
    distance = canary_distance(*canaries)
    comparison = replace(
        comparison, distance=distance, query_distance=canary_distance(*canaries, side="query")
    )
    if verdict_of(distance, None) == "same":
        return comparison
    source = first.documents(probes) if stored_vectors is None else stored_vectors
    fit = fit_error(probes, source, second.documents(probes))
    return replace(comparison, verdict=verdict_of(distance, fit), fit=fit)


def _read_stored(
    first: ModelSpace, texts: Sequence[str], vectors: Path | None, *, is_own: bool
) -> tuple[Sequence[str], Any | None]:
    """Return (texts, their stored vectors) after checking that the model made the vectors.

    Texts with zero vectors, such as empty documents, are omitted. The stored vectors are None if `vectors` is
    None or the texts are not the user's `is_own`.
    """
    if vectors is None:
        return texts, None
    stored_vectors = read_vectors(vectors)
    rows = stored_vectors.rows
    _require_marked(vectors, stored_vectors.plan.fingerprint, first)
    require_passport(vectors, rows, first.passport, first.name)
    if not is_own:
        return texts, None
    if len(texts) != len(rows):
        raise DataError(
            f"{vectors}: has {len(rows)} vectors, and there are {len(texts)} texts; give --texts a line for "
            "each vector, in their order"
        )
    nonzero_rows = [row_number for row_number, row in enumerate(rows) if row.any()]
    if not nonzero_rows:
        raise DataError(f"{vectors}: has no vector but of zeros; embed the texts again")
    texts, rows = [texts[row_number] for row_number in nonzero_rows], rows[nonzero_rows]
    if first.folder is not None:
        places = list(range(0, len(texts), max(1, len(texts) // _SAMPLE)))[:_SAMPLE]
        sampled_texts = [texts[row_number] for row_number in places]
        require_sample(
            vectors,
            rows[places],
            first.documents(sampled_texts),
            first.queries(sampled_texts),
            first.name,
        )
    return texts, rows


def _require_marked(path: Path, fingerprint: str | None, first: ModelSpace) -> None:
    """Refuse vectors whose file names a model other than the first.

    Raises:
        DataError: if it does; the message has the reference to use instead.
    """
    if fingerprint is None or first.folder is None:
        return
    if fingerprint != model_fingerprint(first.folder):
        raise DataError(
            f"{path}: its vectors are marked as another model's than {first.name}; name the model that they "
            "were made by"
        )
