"""Tokens and keys are found wherever they are in what would be published, and are never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge import EmbergeError
from emberge_publish import hide_credentials, require_no_credentials

# Put together here, so that no line of this file has the form of one.
CREDENTIALS = {
    "Hugging Face": "hf_" + "aB3dE6gH9" * 4,
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub": "ghp_" + "a1B2c3D4e5" * 4,
    "GitHub ": "github_pat_" + "11ABCDEFG0_" + "x9" * 20,
    "API key": "sk-" + "a1B2c3D4e5F6" * 4,
    "API key ": "sk-proj-" + "a1_B2-c3D4e5" * 4,
    "API key  ": "sk-ant-" + "api03-" + "a1_B2-c3D4e5" * 4,
    "private key": "-----BEGIN " + "OPENSSH PRIVATE KEY-----",
    "private key ": "-----BEGIN " + "PRIVATE KEY-----",
    "Slack": "xoxb-" + "123456789012-abcdefGHIJ",
    "Google": "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "Stripe": "sk_live_" + "a1B2c3D4e5F6g7H8",
}


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_a_credential_is_refused_with_its_file_and_line_and_is_not_shown(
    kind: str, tmp_path: Path
) -> None:
    secret = CREDENTIALS[kind]
    (tmp_path / "c.json").write_text(f'{{\n "a": 1,\n "note": "use {secret}"\n}}')
    for content in (tmp_path / "c.json", (tmp_path / "c.json").read_bytes()):
        with pytest.raises(EmbergeError) as caught:
            require_no_credentials({"sub/c.json": content})
        assert str(caught.value).startswith("sub/c.json:3: ")
        assert kind.strip() in str(caught.value)
        assert secret not in str(caught.value)


@pytest.mark.parametrize("secret", CREDENTIALS.values())
def test_a_credential_is_found_wherever_it_is(secret: str, tmp_path: Path) -> None:
    """After an escaped line end, over the edge of two pieces, in a name, in the header of weights."""
    require_no_credentials({"fine.txt": b"risk-averse task-specific sk-learn estimators"})
    far = b"\n" * 5 + b" " * ((1 << 20) - 10 - 5) + secret.encode()
    weights = json.dumps({"__metadata__": {"note": secret}}).encode()
    for content, place in (
        (b'"\\n' + secret.encode() + b'"', ":1:"),
        (far, ":6:"),
        (b"\xff\xfe\n" + secret.encode(), ":2:"),
    ):
        with pytest.raises(EmbergeError, match=f"a.txt{place}"):
            require_no_credentials({"a.txt": content})
    with pytest.raises(EmbergeError, match="its name"):
        require_no_credentials({f"logs/{secret}.txt": b""})
    with pytest.raises(EmbergeError, match=r"model\.safetensors:1:"):
        require_no_credentials(
            {"model.safetensors": len(weights).to_bytes(8, "little") + weights + b"\0" * 64}
        )


def test_words_that_only_look_like_credentials_pass() -> None:
    words = "risk-managementandcontrolofrisk hf_model AKIAshort ghp_x xoxo-love task-sk-1 AIza"
    binary = b"\0" + CREDENTIALS["AWS"].encode()
    require_no_credentials({"vocab.txt": words.encode(), "bin": binary})
    require_no_credentials({"bin": b" " * ((1 << 13) - 1) + binary})
    with pytest.raises(EmbergeError, match=r"^text:1: has a key of AWS"):
        require_no_credentials({"text": b" " * (1 << 13) + binary})
    with pytest.raises(EmbergeError, match=r"^text:1: has a key of AWS"):
        require_no_credentials({"text": binary[1:], "bin": binary})


def test_the_users_own_token_is_refused_whatever_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "own-secret-of-mine")
    with pytest.raises(EmbergeError, match=r"a\.txt:2: has your token"):
        require_no_credentials({"a.txt": b"x\nown-secret-of-mine"})
    with pytest.raises(EmbergeError, match=r"a\.txt:1: has your token"):
        require_no_credentials({"a.txt": b"own-secret-of-mine\nx"})
    assert hide_credentials("own-secret-of-mine") == "…"


@pytest.mark.parametrize("secret", CREDENTIALS.values())
def test_words_for_the_user_hide_credentials(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "own-secret-of-mine")
    shown = hide_credentials(f"at https://hub/{secret} by own-secret-of-mine: refused")
    assert secret not in shown
    assert "own-secret" not in shown
    assert shown.startswith("at https://hub/…")
    assert shown.endswith(" by …: refused")


def test_each_kind_is_named_once_a_file_at_its_first_line() -> None:
    one, other = CREDENTIALS["AWS"], CREDENTIALS["Google"]
    text = f"\n{one}\n{other}\n{one}\n".encode()
    with pytest.raises(EmbergeError) as caught:
        require_no_credentials({"b": text, "c": b"", "d": one.encode()})
    places = [line.partition(" ")[0] for line in str(caught.value).splitlines()]
    assert places == ["b:2:", "b:3:", "d:1:"]
    for secret, kind in ((one, "a key of AWS"), (other, "a key of Google")):
        with pytest.raises(EmbergeError, match=rf"^… \(its name\): has {kind} in it"):
            require_no_credentials({secret: b""})


def test_a_long_file_is_read_to_its_end_in_pieces(tmp_path: Path) -> None:
    piece = b"x" * 99 + b"\n"
    text = piece * 25_000 + CREDENTIALS["Slack"].encode()
    (tmp_path / "long.txt").write_bytes(text)
    with pytest.raises(EmbergeError, match=r"long.txt:25001: has a token of Slack"):
        require_no_credentials({"long.txt": tmp_path / "long.txt"})


def test_only_the_header_of_weights_is_looked_through() -> None:
    header = b'{"a": 1}'
    weights = len(header).to_bytes(8, "little") + header + CREDENTIALS["AWS"].encode()
    require_no_credentials({"model.safetensors": weights})
    with pytest.raises(EmbergeError, match=r"^model\.txt:1"):
        require_no_credentials({"model.txt": CREDENTIALS["AWS"].encode()})
