"""Changes of sound files: JSON, lines of YAML, weights, vectors, rows and folders of models."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.fuzz.sandbox import Place
from tests.support.mutated import NAMES, ODD, change_bytes, change_text, change_weights

NUMBERS = (
    *(".inf", "-.inf", ".nan", "1e999", "-1e999", "1e308", "-1e308", "1e-320", "-0.0", "0", "-1"),
    *("10000000", "99999999999999999999", "0x10", "0o17", "1_000", "1e3", "3.0", "0.1", "true"),
)
_TEXTS = (
    *(
        "~",
        "''",
        "[]",
        "{}",
        "[[]]",
        "{a: 1}",
        "!!python/object:os.system x",
        "$gone",
        "$$",
        "&a [*a]",
    ),
    *(
        "../../outside/secret.txt",
        "/etc/passwd",
        "/dev/zero",
        "file:///etc/passwd",
        "http://127.0.0.1:9/x",
    ),
    *(
        '"\\u202e"',
        '"\\x1b[2J"',
        '"a\\0b"',
        "no",
        "2026-01-01",
        "|",
        "- 1",
        "? x",
        "pkg:os",
        "x+y",
        "$x",
    ),
)
_VALUES = (float("nan"), float("inf"), float("-inf"), 3e38, 1e-40)


def change_json(draw: random.Random, path: Path) -> None:
    """Change one to three values, keys or bytes of a JSON file."""
    for _ in range(draw.randint(1, 3)):
        raw = path.read_bytes()
        try:
            value = json.loads(raw)
        except ValueError:
            return
        if draw.random() < 0.2:
            path.write_bytes(change_text(draw, raw))
            return
        spots = list(_spots(value))
        if not spots:
            path.write_text(json.dumps(draw.choice(ODD)))
            return
        owner, key = draw.choice(spots)
        _change_spot(draw, owner, key)
        path.write_text(json.dumps(value))


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _spots(value[key])


def _change_spot(draw: random.Random, owner: Any, key: Any) -> None:
    value, change = owner[key], draw.random()
    if change < 0.2:
        del owner[key]
    elif change < 0.4 and isinstance(value, int) and not isinstance(value, bool):
        owner[key] = draw.choice((value + 1, value - 1, value * 2, -value, 10**7, 2**40))
    elif change < 0.5 and isinstance(owner, dict):
        owner[draw.choice(NAMES)] = owner.pop(key)
    elif change < 0.6:
        owner[key] = [value, value]
    elif change < 0.7:
        owner[key] = draw.choice(NAMES)
    else:
        owner[key] = draw.choice(ODD)


def change_recipe(draw: random.Random, text: str) -> str:
    """Change one to three lines of a YAML text."""
    lines = text.splitlines()
    for _ in range(draw.randint(1, 3)):
        if lines:
            place = draw.randrange(len(lines))
            lines[place : place + 1] = _changed_line(draw, lines[place])
    return "\n".join(lines) + "\n"


def _changed_line(draw: random.Random, line: str) -> list[str]:
    value = draw.choice((*NUMBERS, *_TEXTS))
    word = draw.choice(("x", "models", "steps", "merge"))
    ends = (" ,", " ]", " }", ": x", " &a", " *a", " # x", "\t", " '")
    changes: tuple[list[str], ...] = (
        [re.sub(r"(?<=[ :\[,])-?\d[\d._e-]*", draw.choice(NUMBERS), line, count=1)],
        [re.sub(r":\s.*$", lambda _: f": {value}", line, count=1)],
        [re.sub(r"[A-Za-z_]+", word, line, count=1)],
        [line, line],
        [],
        [" " * draw.randint(1, 4) + line],
        [line.lstrip()],
        [line + draw.choice(ends)],
        [line[: draw.randint(0, len(line))]],
    )
    return draw.choice(changes)


def change_numbers(draw: random.Random, path: Path) -> None:
    """Put NaN, infinities or huge numbers among the float32 weights of a safetensors file."""
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", raw)
    cells = (len(raw) - 8 - length) // 4
    if not cells:
        return
    for _ in range(draw.choice((1, 1, 100))):
        struct.pack_into("<f", raw, 8 + length + 4 * draw.randrange(cells), draw.choice(_VALUES))
    path.write_bytes(bytes(raw))


def change_vectors(draw: random.Random, path: Path) -> None:
    """Change numbers, shape, type or bytes of a .npy file."""
    found = np.load(path)
    change = draw.randrange(8)
    if change == 0:
        found[draw.randrange(len(found))] = draw.choice((*_VALUES, 0.0))
    elif change == 1:
        found[draw.randrange(len(found)), draw.randrange(found.shape[1])] = draw.choice(_VALUES)
    elif change == 2:
        found = draw.choice((found[:0], found[:1], found[:, :-1], found.T, found[None], found[0]))
    elif change == 3:
        found = found.astype(draw.choice(("f8", "f2", ">f4", "i4", "c8", "?", "U3", "O")))
    elif change == 4:
        found = found * draw.choice((1e30, 1e-30, -1.0, 0.0))
    elif change == 5:
        found = np.asfortranarray(found)
    if change < 6:
        np.save(path, found, allow_pickle=True)
    else:
        path.write_bytes(change_bytes(draw, path.read_bytes()))


def change_lines(draw: random.Random, path: Path) -> None:
    """Change one to three lines of JSON, or the bytes of the file."""
    lines = path.read_bytes().splitlines()
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(lines))
        change = draw.randrange(6)
        if change == 0:
            lines[place] = change_text(draw, lines[place])
        elif change == 1:
            lines.insert(place, lines[place])
        elif change == 2:
            lines[place] = draw.choice(
                (b"", b"[]", b"null", b"3", b'"x"', b"{}", b"\xff", b"[" * 9000)
            )
        else:
            row = _row_of(lines[place])
            spots = list(_spots(row))
            if spots:
                _change_spot(draw, *draw.choice(spots))
            lines[place] = json.dumps(row).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


def _row_of(line: bytes) -> Any:
    """The row of a line, which an earlier change may have broken."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {"text": "x"}


def change_model(draw: random.Random, folder: Path, place: Place) -> None:
    """Change a model's folder as a careless or hostile stranger would."""
    files = sorted(path for path in folder.rglob("*") if _is_regular(path))
    weights = folder / "model.safetensors"
    # What an earlier change put in their place is not read here: a device never ends.
    if not all(map(_is_regular, (weights, folder / "config.json", folder / "modules.json"))):
        return
    chosen = draw.choice(files)
    texts = [path for path in files if path.suffix == ".json"]
    changes: tuple[Callable[[], object], ...] = (
        *[lambda: change_json(draw, draw.choice(texts))] * 6,
        *[lambda: change_json(draw, folder / "config.json")] * 3,
        lambda: change_numbers(draw, weights),
        lambda: weights.write_bytes(change_weights(draw, weights.read_bytes())),
        chosen.unlink,
        lambda: chosen.write_bytes(change_bytes(draw, chosen.read_bytes())),
        lambda: _replace(chosen, lambda: chosen.symlink_to(place.outside / "secret.txt")),
        lambda: _replace(chosen, lambda: os.mkfifo(chosen)),
        lambda: _replace(chosen, chosen.mkdir),
        lambda: _replace(chosen, lambda: chosen.symlink_to("/dev/zero")),
        lambda: _link_folder(draw, folder, place),
        lambda: (folder / draw.choice(("LICENSE", "README.md", "x"))).symlink_to(
            place.outside / "secret.txt"
        ),
        lambda: _plant_code(folder, place),
        lambda: _plant_note(draw, folder, place),
        lambda: (
            (folder / draw.choice(NAMES[5:16]).replace("/", "_").replace("\0", "")[:200]).touch()
            if draw.random() < 0.9
            else None
        ),
    )
    try:
        draw.choice(changes)()
    except (OSError, ValueError, UnicodeError):  # a name that no file can have
        return


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _replace(path: Path, make: Callable[[], object]) -> None:
    path.unlink()
    make()


def _link_folder(draw: random.Random, folder: Path, place: Place) -> None:
    chosen = folder / draw.choice(("1_Pooling", "2_Normalize"))
    shutil.rmtree(chosen)
    chosen.symlink_to(place.outside / "deep")


def _plant_code(folder: Path, place: Place) -> None:
    """Name code of the folder in its config; it would leave a file behind."""
    code = f"open({str(place.outside / 'ran')!r}, 'w').write('x')\n"
    for name in ("modeling_x.py", "x.py", "xxhash.py", "numpy.py"):
        (folder / name).write_text(code + "class X: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_x.X", "AutoConfig": "modeling_x.X"}
    (folder / "config.json").write_text(json.dumps(config))
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1]["type"] = "x.X"
    (folder / "modules.json").write_text(json.dumps(modules))


def _plant_note(draw: random.Random, folder: Path, place: Place) -> None:
    """Put notes beside the weights that send whoever believes them elsewhere."""
    (folder / "model.safetensors.remote").write_text(
        json.dumps({"url": f"file://{place.outside}/secret.txt", "size": 34})
    )
    if draw.random() < 0.5:
        (folder / "model.safetensors").unlink()
