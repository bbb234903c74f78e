"""The verb `translate` on int8 codes with their ranges, and into codes and bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from emberge.encoding import Int8Ranges
from emberge_index import translate_file
from emberge_index.vectors import new_codes, pieces, rewrite
from safetensors.numpy import load_file, save_file
from sentence_transformers import quantize_embeddings

from tests.support.translations import expected, vectors, write_translation

ROWS = 1000


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BLOCK", 24 * 4 * 64)
    monkeypatch.setattr(rewrite, "BLOCK", 24 * 4 * 64)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Float vectors, their codes by sentence-transformers, and the ranges of these."""
    write_translation(tmp_path / "by", 24, 16)
    given = vectors(ROWS, 24)
    ranges = np.stack([given.min(0), given.max(0)])
    np.save(tmp_path / "floats.npy", given)
    np.save(tmp_path / "codes.npy", quantize_embeddings(given, "int8", ranges=ranges))
    np.savez(tmp_path / "ranges.npz", ranges=ranges)
    np.save(tmp_path / "ranges.npy", ranges)
    return tmp_path


def run(place: Path, name: str, *words: str, out: str = "new.npy") -> int:
    paths = ["--by", str(place / "by"), "--out", str(place / out)]
    return main(["translate", str(place / name), *paths, "--quiet", *words])


def decoded(place: Path, name: str = "new.npy") -> np.ndarray:
    ranges = np.load(place / f"{name}.ranges.npz")["ranges"]
    found = Int8Ranges(*ranges.astype(np.float32))
    return found.decode(np.load(place / name), middle=True)


@pytest.mark.parametrize("ranges", ["ranges.npz", "ranges.npy"])
def test_codes_become_codes_of_the_mapped_vectors(place: Path, ranges: str) -> None:
    assert run(place, "codes.npy", "--ranges", str(place / ranges)) == 0
    translation = write_translation(place / "by", 24, 16)
    wanted = expected(translation, np.load(place / "floats.npy"))
    assert np.load(place / "new.npy").dtype == np.int8
    found = decoded(place)
    assert found.shape == (ROWS, 16)
    # A step of the old ranges, spread by the map, and one of the new ones: about a hundredth of a length.
    errors = np.linalg.norm(found - wanted, axis=1)
    assert np.median(errors) < 0.02
    assert errors.max() < 0.1
    # Within its ranges no code is further than its step from the codes of the exact vectors, nearly always.
    exact = Int8Ranges(*np.load(place / "new.npy.ranges.npz")["ranges"]).encode(wanted)
    differences = np.abs(np.load(place / "new.npy").astype(int) - exact.astype(int))
    assert np.median(differences) <= 2


def test_an_identity_keeps_every_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    made = write_translation(place / "same", 24, 24, unit=False)
    plain = type(made.fitted)(np.eye(24), np.zeros(24))
    object.__setattr__(made, "fitted", plain)
    made.write(place / "same", {})
    given = vectors(ROWS, 24, unit=False)
    ranges = np.stack([given.min(0), given.max(0)])
    stored = quantize_embeddings(given, "int8", ranges=ranges)
    np.save(place / "old.npy", stored)
    np.savez(place / "old.npz", ranges=ranges)
    words = ["--ranges", str(place / "old.npz"), "--new-ranges", str(place / "old.npz")]
    paths = ["--by", str(place / "same"), "--out", str(place / "again.npy")]
    assert main(["translate", str(place / "old.npy"), *paths, "--quiet", *words]) == 0
    np.testing.assert_array_equal(np.load(place / "again.npy"), stored)
    np.testing.assert_array_equal(np.load(place / "again.npy.ranges.npz")["ranges"], ranges)


def test_new_ranges_are_of_an_even_sample_of_mapped_vectors(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translation = write_translation(place / "by", 24, 16)
    assert run(place, "floats.npy", "--as", "int8") == 0
    wanted = expected(translation, np.load(place / "floats.npy"))
    found = np.load(place / "new.npy.ranges.npz")["ranges"]
    np.testing.assert_allclose(found, [wanted.min(0), wanted.max(0)], atol=1e-5)
    monkeypatch.setattr(new_codes, "SAMPLE", 32)  # two rows of each of sixteen places
    assert run(place, "floats.npy", "--as", "int8", out="few.npy") == 0
    # Blocks of two begin at the first row and end at the last two, evenly spaced.
    places = sorted({int(one) * 2 for one in np.linspace(0, ROWS // 2 - 1, 16)})
    rows = wanted[[row for first in places for row in (first, first + 1)]]
    few = np.load(place / "few.npy.ranges.npz")["ranges"]
    np.testing.assert_allclose(few, [rows.min(0), rows.max(0)], atol=1e-5)


def test_floats_become_codes_and_bits_as_the_library_makes_them(place: Path) -> None:
    translation = write_translation(place / "by", 24, 16)
    assert run(place, "floats.npy", out="plain.npy") == 0
    plain = np.load(place / "plain.npy")
    np.testing.assert_allclose(
        plain, expected(translation, np.load(place / "floats.npy")), atol=1e-5
    )
    np.save(place / "wide.npy", np.stack([np.full(16, -0.5), np.full(16, 0.5)]))
    assert run(place, "floats.npy", "--as", "int8", "--new-ranges", str(place / "wide.npy")) == 0
    library = quantize_embeddings(plain, "int8", ranges=np.load(place / "wide.npy"))
    inside = np.abs(plain) < 0.49  # the library wraps numbers outside the ranges
    np.testing.assert_array_equal(np.load(place / "new.npy")[inside], library[inside])
    assert run(place, "floats.npy", "--as", "binary", out="bits.npy") == 0
    np.testing.assert_array_equal(
        np.load(place / "bits.npy"), quantize_embeddings(plain, "ubinary")
    )
    assert not (place / "bits.npy.ranges.npz").exists()
    assert (
        run(
            place, "codes.npy", "--ranges", str(place / "ranges.npz"), "--as", "binary", out="b.npy"
        )
        == 0
    )
    same = np.unpackbits(np.load(place / "b.npy")) == np.unpackbits(np.load(place / "bits.npy"))
    assert 0.98 < same.mean() <= 1


def test_bits_of_other_sizes_fill_their_last_byte(place: Path) -> None:
    write_translation(place / "by", 24, 20)
    assert run(place, "floats.npy", out="plain.npy") == 0
    assert run(place, "floats.npy", "--as", "binary", out="bits.npy") == 0
    bits = np.load(place / "bits.npy")
    assert bits.shape == (ROWS, 3)
    np.testing.assert_array_equal(
        np.unpackbits(bits, axis=1)[:, :20], np.load(place / "plain.npy") > 0
    )


def test_safetensors_keep_other_tensors_beside_codes(place: Path) -> None:
    stored = np.load(place / "codes.npy")
    save_file({"ids": np.arange(ROWS), "v": stored}, place / "old.safetensors")
    words = ["--ranges", str(place / "ranges.npz")]
    assert run(place, "old.safetensors", *words, out="new.safetensors") == 0
    assert run(place, "codes.npy", *words) == 0
    found = load_file(place / "new.safetensors")
    np.testing.assert_array_equal(found["ids"], np.arange(ROWS))
    np.testing.assert_array_equal(found["v"], np.load(place / "new.npy"))


def test_refresh_reads_codes(place: Path) -> None:
    words = ["--by", str(place / "by"), "--out"]
    coded = ["refresh", str(place / "codes.npy"), *words, str(place / "a.npy")]
    assert main([*coded, "--ranges", str(place / "ranges.npz")]) == 0
    assert main(["refresh", str(place / "floats.npy"), *words, str(place / "b.npy")]) == 0
    first, second = (set(np.load(place / name)[:100].tolist()) for name in ("a.npy", "b.npy"))
    assert len(first & second) > 80


def test_a_file_with_the_name_of_the_ranges_is_not_written_over(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ranges", str(place / "ranges.npz")]
    other = place / "new.npy.ranges.npz"
    other.write_bytes(b"mine")
    assert run(place, "codes.npy", *words) == 2
    assert "new.npy.ranges.npz: exists already" in capsys.readouterr().err
    assert other.read_bytes() == b"mine"
    assert not (place / "new.npy").exists()
    other.unlink()
    assert run(place, "codes.npy", *words) == 0
    (place / "new.npy").unlink()  # as after a kill between the ranges and the vectors
    assert run(place, "codes.npy", *words) == 0


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


def _save(path: Path, **content: Any) -> str:
    np.savez(path, **content)
    return str(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: _save(p / "r.npz", other=np.zeros((2, 24))), "has no ranges of int8"),
        (lambda p: _save(p / "r.npz", ranges=np.zeros((2, 16))), "need two rows of 24 floats"),
        (lambda p: _save(p / "r.npz", ranges=np.zeros((2, 24), int)), "its ranges are int64"),
        (
            lambda p: _save(p / "r.npz", ranges=np.stack([np.ones(24), np.zeros(24)])),
            "whose least number is above the greatest",
        ),
        (lambda p: _save(p / "r.npz", ranges=np.full((2, 24), np.nan)), "not finite"),
        (
            lambda p: _save(p / "r.npz", ranges=np.stack([np.zeros(24), np.full(24, np.inf)])),
            "not finite",
        ),
        (lambda p: str(p / "missing.npz"), "has no ranges of int8"),
        (lambda p: str(p / "codes.npy"), "its ranges are int8 (1000, 24)"),
    ],
)
def test_ranges_that_are_none_are_refused(
    place: Path, make: Callable[[Path], str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place, "codes.npy", "--ranges", make(place)) == 2
    assert words in capsys.readouterr().err
    assert not (place / "new.npy").exists()


def test_pickled_ranges_are_not_opened(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(place / "p.npz", ranges=np.array([{"a": 1}], dtype=object))
    assert run(place, "codes.npy", "--ranges", str(place / "p.npz")) == 2
    assert "has no ranges of int8" in capsys.readouterr().err


def test_codes_without_ranges_and_bits_are_refused_with_what_to_do(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert run(place, *words) == 2
        assert not (place / "new.npy").exists()
        return capsys.readouterr().err

    assert "by the ranges that they were made with (--ranges)" in told("codes.npy")
    np.save(place / "bits.npy", np.zeros((ROWS, 3), np.uint8))
    message = told("bits.npy")
    assert (
        "are uint8, bits, or codes whose steps are not known, which cannot be rewritten" in message
    )
    assert "--as binary" in told("bits.npy")
    ranges = ["--ranges", str(place / "ranges.npz")]
    assert "are float32, which have no ranges; take --ranges out" in told("floats.npy", *ranges)
    assert "are uint8" in told("bits.npy", *ranges)
    message = told("floats.npy", "--new-ranges", str(place / "ranges.npz"))
    assert "--new-ranges are those of new int8 vectors; add --as int8" in message
    save_file({"v": np.load(place / "floats.npy")}, place / "f.safetensors")
    assert run(place, "f.safetensors", "--as", "int8", out="n.safetensors") == 2
    assert "only the vectors of an .npy file change their form" in capsys.readouterr().err
    np.save(place / "one.npy", np.load(place / "floats.npy")[:1])
    assert "ranges need two vectors or more" in told("one.npy", "--as", "int8")


# ── killed, and large ───────────────────────────────────────────────────────────────────────────


def _killed_after(place: Path, blocks: int, out: Path, **form: Any) -> bool:
    """Translate in a copy of this process that dies after some blocks; False when it was done before."""
    child = os.fork()
    if not child:
        left = blocks

        def progress(*_: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        translate_file(
            place / "codes.npy",
            place / "by",
            out,
            ranges=place / "ranges.npz",
            progress=progress,
            **form,
        )
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_a_killed_translation_of_codes_ends_with_the_same_bytes(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(rewrite, "NOTED", 0.0)
    words = ["--ranges", str(place / "ranges.npz"), "--as", kind]
    assert run(place, "codes.npy", *words) == 0
    draw, kills = random.Random(0), 0
    while _killed_after(place, draw.randint(1, 4), place / "killed.npy", kind=kind):
        kills += 1
    assert kills > 2
    first, second = (place / f"{name}.npy" for name in ("new", "killed"))
    assert first.read_bytes() == second.read_bytes()
    if kind == "int8":
        first, second = (place / f"{name}.npy.ranges.npz" for name in ("new", "killed"))
        np.testing.assert_array_equal(np.load(first)["ranges"], np.load(second)["ranges"])


def test_codes_of_wide_ranges_still_have_length_one(place: Path) -> None:
    wide = np.stack([np.full(24, -4.0), np.full(24, 4.0)]).astype(np.float32)
    np.save(place / "w.npy", wide)
    np.save(
        place / "coarse.npy",
        quantize_embeddings(np.load(place / "floats.npy"), "int8", ranges=wide),
    )
    lengths = np.linalg.norm(
        Int8Ranges(*wide).decode(np.load(place / "coarse.npy"), middle=True), axis=1
    )
    assert np.abs(lengths - 1).max() > 0.01
    assert run(place, "coarse.npy", "--ranges", str(place / "w.npy")) == 0


def test_another_form_does_not_go_on_from_a_killed_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "NOTED", 0.0)
    assert _killed_after(place, 5, place / "killed.npy")
    assert (place / ".killed.npy.translating").exists()
    np.save(place / "wide.npy", np.stack([np.full(16, -2.0), np.full(16, 2.0)]))
    words = ["--ranges", str(place / "ranges.npz"), "--new-ranges", str(place / "wide.npy")]
    assert run(place, "codes.npy", *words, out="killed.npy") == 0
    assert run(place, "codes.npy", *words) == 0
    assert (place / "killed.npy").read_bytes() == (place / "new.npy").read_bytes()


@pytest.mark.slow
def test_a_million_vectors_of_int8_are_translated_in_bounded_memory(tmp_path: Path) -> None:
    write_translation(tmp_path / "by", 384, 384)
    sample = vectors(10_000, 384)
    ranges = np.stack([sample.min(0), sample.max(0)])
    np.savez(tmp_path / "ranges.npz", ranges=ranges)
    stored = np.lib.format.open_memmap(
        tmp_path / "codes.npy", "w+", dtype=np.int8, shape=(1_000_000, 384)
    )
    coded = quantize_embeddings(sample, "int8", ranges=ranges)
    for start in range(0, len(stored), len(coded)):
        stored[start : start + len(coded)] = coded
    stored.flush()
    # The usage that a process is told of includes its parent's before the program was started.
    script = (
        "import sys; from pathlib import Path; from emberge.cli.main import main; "
        "code = main(sys.argv[1:]); "
        "status = Path('/proc/self/status').read_text().splitlines(); "
        "(peak,) = [line.split()[1] for line in status if line.startswith('VmHWM')]; "
        "print(code, int(peak) // 1024)"
    )
    words = ["translate", str(tmp_path / "codes.npy"), "--by", str(tmp_path / "by"), "--quiet"]
    words += ["--ranges", str(tmp_path / "ranges.npz"), "--out", str(tmp_path / "new.npy")]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    code, megabytes = done.stdout.split()[-2:]
    assert code == "0"
    print(f"\nmost memory: {megabytes} MB")
    assert int(megabytes) < 600  # the file has 384 MB, and its floats 1.5 GB
    new = np.load(tmp_path / "new.npy", mmap_mode="r")
    assert new.shape == (1_000_000, 384)
    np.testing.assert_array_equal(new[:10_000], new[-10_000:])
