"""Redirects and names: nothing but the server that was named is asked, and no private network unasked."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest
from emberge import CheckpointError, load_plugins
from emberge.network import addresses, connection
from emberge.network.addresses import Origin, is_public, require_address, require_redirect
from emberge.network.request_errors import ForbiddenAddressError
from emberge.tensor_files import ServerFile, server_file
from huggingface_hub import constants

from tests.support.hostile_server import Request, answer, hostile

ETAG = 'ETag: "one"'


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "_WAITS", (0.001,) * 7)
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    monkeypatch.delenv("EMBERGE_PRIVATE_HOSTS", raising=False)


def leading_to(where: str, status: str = "302 Found") -> Iterator[bytes]:
    return iter([answer(status, b"", f"Location: {where}")])


# ── redirects ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 T", "308 P"])
def test_a_redirect_to_another_server_is_not_followed(status: str) -> None:
    """Another port of this machine is another server: a database, a notebook."""
    with (
        hostile(lambda _: iter([answer("200 OK", b"", ETAG)])) as other,
        hostile(lambda _: leading_to(f"{other.url}/m", status)) as server,
    ):
        with pytest.raises(ForbiddenAddressError, match="leads to another server"):
            ServerFile.look_up(f"{server.url}/m")
        with pytest.raises(ForbiddenAddressError, match=rf"127\.0\.0\.1:{other.port}"):
            ServerFile(f"{server.url}/m", 100, '"one"').read(0, 10)
        assert other.requests == []


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/m",
        "https://example.org/m",
        "//example.org/m",
        "http://user@127.0.0.1/m",
        "file:///etc/passwd",
        "ftp://127.0.0.1/m",
        "http://2130706433/m",
        "http://127.0.0.1:99999/m",
    ],
)
def test_a_redirect_to_elsewhere_is_refused_by_its_text(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile(lambda _: leading_to(where)) as server:
        url = f"{server.url}/m"
        asked = []
        monkeypatch.setattr(
            "emberge.network.web_client.connect",
            lambda host, port, *a, **k: (
                asked.append((host, port)) or connection.connect(host, port, *a, **k)
            ),
        )
        with pytest.raises(ForbiddenAddressError):
            ServerFile.look_up(url)
    assert set(asked) == {("127.0.0.1", server.port)}


def test_a_redirect_on_the_same_server_is_followed_and_remembered() -> None:
    def reply(request: Request) -> Iterator[bytes]:
        if request.path == "/m":
            return leading_to("/stored/m?key=1")
        if request.method == "HEAD":
            return iter([answer("200 OK", b"", ETAG, length=10)])
        return iter([answer("206 OK", b"01234", "Content-Range: bytes 0-4/10", ETAG)])

    with hostile(reply) as server:
        file = ServerFile.look_up(f"{server.url}/m")
        assert file is not None
        assert file.read(0, 5) == b"01234"
        assert file.read(0, 5) == b"01234"
        assert [r.path for r in server.requests if r.path == "/m"] == ["/m"] * 2


def test_an_expired_redirect_is_asked_for_again() -> None:
    keys = iter(["/old", "/new"])

    def reply(request: Request) -> Iterator[bytes]:
        if request.path == "/m":
            return leading_to(next(keys))
        if request.path == "/old" and len(server.requests) > 2:
            return iter([answer("403 Forbidden")])
        return iter([answer("206 OK", b"01234", "Content-Range: bytes 0-4/10", ETAG)])

    with hostile(reply) as server:
        file = ServerFile(f"{server.url}/m", 10, '"one"')
        assert file.read(0, 5) == file.read(0, 5) == b"01234"
        assert [r.path for r in server.requests] == ["/m", "/old", "/old", "/m", "/new"]


def test_redirects_without_end_end() -> None:
    with hostile(lambda request: leading_to(request.path + "x")) as server:
        with pytest.raises(CheckpointError, match="from address to address"):
            ServerFile.look_up(f"{server.url}/m")
        assert len(server.requests) == 5


HUB = Origin("https", "huggingface.co", 443)


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("https://a.org/m", "https://a.org/n"),
        ("http://a.org/m", "https://a.org/m"),
        ("https://A.org./m", "https://a.org/m"),
        ("https://huggingface.co/o/n", "https://cdn-lfs.hf.co/x"),
        ("https://huggingface.co/o/n", "https://cas-bridge.xethub.hf.co/x"),
        ("https://mirror.org/o/n", "https://cdn-lfs-us-1.huggingface.co/x"),
    ],
)
def test_redirects_that_are_followed(named: str, target: str) -> None:
    assert follows(named, target)


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ("https://a.org/m", "http://a.org/m"),
        ("https://a.org/m", "https://b.a.org/m"),
        ("https://a.org/m", "https://a.org:8443/m"),
        ("http://a.org:8080/m", "https://a.org/m"),
        ("http://a.org/m", "https://a.org:8443/m"),
        ("https://huggingface.co/o/n", "http://cdn-lfs.hf.co/x"),
        ("https://huggingface.co/o/n", "https://cdn-lfs.hf.co:444/x"),
        ("https://huggingface.co/o/n", "https://evilhf.co/x"),
        ("https://huggingface.co/o/n", "https://huggingface.co.evil.org/x"),
    ],
)
def test_redirects_that_are_not(named: str, target: str) -> None:
    assert not follows(named, target)


def follows(named: str, target: str) -> bool:
    """Return whether a redirect is followed."""
    try:
        require_redirect(Origin.of(named), Origin.of(target))
    except ForbiddenAddressError:
        return False
    return True


# ── private networks ────────────────────────────────────────────────────────────────────────────

PRIVATE = [
    "10.0.0.5",
    "172.16.0.1",
    "192.168.1.1",
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1%eth0",
    "fd00::1",
    "ff02::1",
    "::ffff:10.0.0.5",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::10.0.0.5",
    "64:ff9b::169.254.169.254",
    "2002:0a00:0005::",
    "2002:7f00:0001::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_one_in_every_form(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(ForbiddenAddressError, match="private network"):
        require_address("models.example", address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::8.8.8.8"])
def test_a_public_address_is_none(address: str) -> None:
    assert is_public(address)
    require_address("models.example", address)


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.5", "10.0.0.5"), ("::1", "::1"), ("localhost", "127.0.0.1"), ("nas", "10.0.0.5")],
)
def test_a_private_address_that_was_named_is_asked(
    host: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERGE_PRIVATE_HOSTS", "other, NAS")
    require_address(host, address)
    assert addresses.is_named(host)


def test_the_hub_that_was_set_may_be_a_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.lab:8080")
    require_address("hub.lab", "10.0.0.5")
    with pytest.raises(ForbiddenAddressError):
        require_address("db.lab", "10.0.0.5")
    with pytest.raises(ForbiddenAddressError):
        require_redirect(Origin.of("https://a.org/m"), Origin.of("http://hub.lab:8080/m"))


def test_the_hub_is_the_clients_then_the_environments_then_the_public_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.lab:8080")
    assert addresses.hub_origin() == HUB
    assert addresses.is_of_hub(HUB)
    monkeypatch.delitem(sys.modules, "huggingface_hub.constants")
    assert addresses.hub_origin() == Origin("http", "hub.lab", 8080)
    monkeypatch.delenv("HF_ENDPOINT")
    assert addresses.hub_origin() == HUB


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("HTTPS://A.org.:443/m", "https://a.org"),
        ("http://a.org:80", "http://a.org"),
        ("http://a.org:443", "http://a.org:443"),
        ("https://[::1]:8443/m", "https://[::1]:8443"),
    ],
)
def test_an_origin_is_written_with_the_port_that_its_scheme_does_not_have(
    url: str, text: str
) -> None:
    assert str(Origin.of(url)) == text
    assert Origin.of(text) == Origin.of(url)


@pytest.mark.parametrize("url", ["https://", "https://a:x/m", "https://[::1/m", "ftp://a/m", "a/m"])
def test_what_is_no_address_of_a_web_server_is_refused_with_its_form(url: str) -> None:
    with pytest.raises(ForbiddenAddressError, match="write https://host/path") as caught:
        Origin.of(url)
    assert str(caught.value).startswith(f"{url}: ")


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "①②⑦.⓪.⓪.①"])
def test_other_ways_to_write_an_address_name_nothing_private(host: str) -> None:
    """The system takes them for this machine; nobody writes them but to hide that."""
    with pytest.raises(CheckpointError):
        ServerFile.look_up(f"http://{host}:1/m")
    assert not addresses.is_named(host)


@pytest.mark.parametrize(
    "means", [["127.0.0.1"], ["93.184.216.34", "10.0.0.5"], ["10.0.0.5", "93.184.216.34"]]
)
def test_a_public_name_that_means_a_private_address_is_not_connected_to(
    means: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 1)) for one in means]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(connection, "_open_socket", lambda *_: pytest.fail("connected"))
    with pytest.raises(ForbiddenAddressError, match="EMBERGE_PRIVATE_HOSTS"):
        ServerFile.look_up("https://models.example/m")


def test_the_address_that_was_checked_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that means another address when it is asked for a second time has no second time."""
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    opened = []

    def look_up(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, 443)) for a in next(answers)]

    def open_(_: int, place: tuple[str, int], *__: object) -> socket.socket:
        opened.append(place[0])
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(connection, "_open_socket", open_)
    with pytest.raises(CheckpointError):
        ServerFile.look_up("https://models.example/m")
    assert opened == ["93.184.216.34"]


# ── kinds of addresses ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://a.org/m", "sftp://a/m", "memory://m", "github://o:n@/m", "/m"],
)
def test_other_kinds_of_addresses_are_not_read(url: str) -> None:
    with pytest.raises(ForbiddenAddressError, match="only https://, http://, s3://, gs://, hf://"):
        ServerFile.look_up(url)
    plugins = load_plugins()
    assert plugins.hook.locate_model(reference=url, revision=None, files="ranges") is None


def test_the_kind_of_an_address_is_what_it_begins_with() -> None:
    assert ServerFile.reads("https://host/a://b")
    assert not ServerFile.reads("acme://https://host/a")
    assert not ServerFile.reads("https:host/a")
