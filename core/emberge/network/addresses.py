"""Checks of addresses: allowed schemes and redirects, and no private network unless named.

A recipe, a note or a redirect may come from a stranger. A private address is therefore contacted only if the
user named it: as it is (`http://10.0.0.5/model`), as `localhost`, as the hub (`HF_ENDPOINT`), or by its
host's name in `EMBERGE_PRIVATE_HOSTS`. Plain http is used only for addresses that the user wrote with
`http:`, as anybody on the network's path can change the answers. In particular, a redirect from https never
leads to plain http.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from emberge.network.request_errors import ForbiddenAddressError
from emberge.wording import printable

SCHEMES = ("https", "http", "s3", "gs", "hf")
KINDS = tuple(f"{scheme}://" for scheme in SCHEMES)
_PORTS = {"https": 443, "http": 80}
# Hosts of the public hub, and those that end so: its large files are on several.
_HUB_HOSTS = ("huggingface.co", "hf.co")
# IPv6 addresses by which networks without IPv4 reach it.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Origin:
    """A web server: scheme, host and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Return the server of an http or https address.

        Raises:
            ForbiddenAddressError: if the scheme is another one, the host is missing, or the port is invalid.
        """
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            host, port = "", None
        if not host or parts.scheme not in _PORTS:
            raise ForbiddenAddressError(
                f"{printable(url, 200)}: no address of a web server; write https://host/path"
            )
        return cls(parts.scheme, host.lower(), port or _PORTS[parts.scheme])

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (
            "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        )


def is_address(text: str) -> bool:
    """Return whether a text is an address of a supported kind."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme in SCHEMES


def require_scheme(url: str) -> None:
    """Require that an address has a supported scheme.

    Raises:
        ForbiddenAddressError: if the scheme is another one.
    """
    if not is_address(url):
        raise ForbiddenAddressError(
            f"{printable(url, 200)}: only {', '.join(KINDS)} are read; write a file's path without a scheme"
        )


def hub_origin() -> Origin:
    """Return the server of the hub: that of `HF_ENDPOINT` if set, as the hub's client has read it."""
    read = getattr(sys.modules.get("huggingface_hub.constants"), "ENDPOINT", None)
    return Origin.of(read or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


def is_of_hub(origin: Origin) -> bool:
    """Return whether a server is the public hub's, over https."""
    is_hub_host = any(
        origin.host == host or origin.host.endswith(f".{host}") for host in _HUB_HOSTS
    )
    return is_hub_host and origin.scheme == "https" and origin.port == 443


def require_redirect(named: Origin, target: Origin) -> None:
    """Require that a redirect leads to `named` by the same or a safer scheme, or to the hub's servers.

    Raises:
        ForbiddenAddressError: if it leads elsewhere.
    """
    upgraded = Origin("https", named.host, 443)
    if target in (named, upgraded if named.port == 80 else named) or is_of_hub(target):
        return
    raise ForbiddenAddressError(
        f"{named}: leads to another server, {printable(str(target), 200)}, which was not named; name the "
        "address that it leads to if you trust it"
    )


def is_named(host: str) -> bool:
    """Return whether the user named this host, so that it may be in a private network."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    hub = hub_origin()
    if host == hub.host and not is_of_hub(hub):  # set in the environment
        return True
    listed = os.environ.get("EMBERGE_PRIVATE_HOSTS", "").lower().replace(",", " ").split()
    if host in listed:
        return True
    # Only in the usual spelling: 0x7f.1 and 2130706433 are ways to hide it.
    return _is_literal(host)


def is_loopback(url: str) -> bool:
    """Return whether a web address is one of this machine: `localhost`, 127.0.0.1, ::1.

    Raises:
        ForbiddenAddressError: if it is no address of a web server.
    """
    host = Origin.of(url).host
    return host == "localhost" or (_is_literal(host) and ipaddress.ip_address(host).is_loopback)


def is_safe_for_secrets(url: str) -> bool:
    """Return whether a key may be sent to a web address: by https, or within a private network.

    Raises:
        ForbiddenAddressError: if it is no address of a web server.
    """
    origin = Origin.of(url)
    if origin.scheme == "https" or is_loopback(url):
        return True
    return is_named(origin.host) and not (_is_literal(origin.host) and is_public(origin.host))


def _is_literal(host: str) -> bool:
    """Return whether a host is an IP address in its usual spelling."""
    try:
        return str(ipaddress.ip_address(host)) == host
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Return whether an IP address is public, including an IPv4 address embedded in IPv6."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return all(
        embedded.is_global and not (embedded.is_multicast or embedded.is_reserved)
        for embedded in _list_embedded_addresses(parsed)
    )


def require_address(host: str, address: str) -> None:
    """Require that a connection from this host name to this IP address is allowed.

    Raises:
        ForbiddenAddressError: if the address is private and was not named by the user.
    """
    if not is_public(address) and not is_named(host):
        raise ForbiddenAddressError(
            f"{printable(host, 200)}: means {address}, which is of a private network; name that address "
            "itself, or list the host in EMBERGE_PRIVATE_HOSTS if you trust it"
        )


def _list_embedded_addresses(found: _IPAddress) -> list[_IPAddress]:
    """Return all addresses that packets to an address may reach: an IPv6 address can embed IPv4 addresses."""
    if isinstance(found, ipaddress.IPv4Address):
        return [found]
    if found in _NAT64:
        return [ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)]
    embedded_addresses = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
    return [found, *(one for one in embedded_addresses if one is not None)]
