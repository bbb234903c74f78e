"""The store through which ranks find each other: signed with their secret, and closed to other machines.

Torch's default store listens on all interfaces and accepts values from anybody who connects.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed import Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from emberge.errors import EmbergeError
from emberge.processes import LISTENER, SECRET

_DIGEST = hashlib.sha256
_LENGTH = _DIGEST().digest_size
# Interfaces that no other machine sees, by system.
_LOOPBACK = ("lo", "lo0")
# Variables by which gloo and NCCL are told where to listen.
_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class ForgedError(EmbergeError):
    """Error for a value that no rank of this run has signed."""


class SignedStore(Store):
    """Store whose values begin with a signature of key and value, which is made with a secret.

    Torch's process groups keep the ranks' addresses in the store, so addresses, too, are accepted only from a
    rank. No value is executed: values are bytes for torch, and JSON for `Ranks`. Torch loses the overridden
    methods if no Python reference to the object exists, so `Ranks` keeps one until the group is left.
    """

    def __init__(self, inner: Any, secret: str, place: str) -> None:
        super().__init__()
        self._inner = inner
        self._place = place
        self._secret = secret.encode()

    def set(self, key: str, value: bytes | str) -> None:
        plain = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(key, self._sign_value(key, plain) + plain)

    def get(self, key: str) -> bytes:
        signed = self._inner.get(key)
        plain: bytes = signed[_LENGTH:]
        if not hmac.compare_digest(signed[:_LENGTH], self._sign_value(key, plain)):
            raise ForgedError(
                f"the message '{key}' was written by no rank of this run; look for another process that uses "
                f"{self._place}, and start again"
            )
        return plain

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        self._inner.wait(list(keys), *([] if timeout is None else [timeout]))

    # What follows carries no value: a stranger can only make ranks wait or fail by it.

    def add(self, key: str, amount: int) -> int:
        return int(self._inner.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._inner.check(list(keys)))

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._inner.set_timeout(timeout)

    @property
    def timeout(self) -> datetime.timedelta:
        """The longest time that a rank waits for a value."""
        limit: datetime.timedelta = self._inner.timeout
        return limit

    def has_extended_api(self) -> bool:
        return False

    def _sign_value(self, key: str, value: bytes) -> bytes:
        name = key.encode()
        return hmac.digest(self._secret, len(name).to_bytes(4, "big") + name + value, _DIGEST)


def join_store(patience: datetime.timedelta) -> tuple[SignedStore, int, int]:
    """Return the store of this process's ranks, its rank, and their number, by torchrun's variables.

    If all ranks are on this machine, the store and the groups of torch listen on the loopback interface. A
    launcher with its own store, such as torchrun, chooses the interface itself.

    Raises:
        OSError, RuntimeError, ValueError, KeyError: if the ranks do not find each other.
    """
    environment = os.environ
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    all_local = _are_all_local(environment)
    if all_local:
        _keep_to_loopback()
    listener = None
    if rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        listener = _open_listener(host, port, all_local)
    if listener is None:
        inner = next(rendezvous("env://", timeout=patience))[0]
    else:
        inner = TCPStore(host, port, size, True, patience, master_listen_fd=listener.detach())
    return SignedStore(inner, environment.get(SECRET, ""), f"{host}:{port}"), rank, size


def _are_all_local(environment: Mapping[str, str]) -> bool:
    """Return whether no rank is on another machine."""
    if environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]:
        return True
    return _is_loopback(environment["MASTER_ADDR"])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _keep_to_loopback() -> None:
    """Make groups of torch listen on the loopback interface, unless the user has named one."""
    names = [name for _, name in socket.if_nameindex() if name in _LOOPBACK]
    for variable in _INTERFACE if names else ():
        os.environ.setdefault(variable, names[0])


def _open_listener(host: str, port: int, here: bool) -> socket.socket | None:
    """Return the first rank's listening socket, bound to the address that the other ranks connect to.

    The result is None if that is not an address of this machine, as behind a router; torch then listens on
    all interfaces.
    """
    if number := os.environ.get(LISTENER):
        return socket.socket(fileno=os.dup(int(number)))
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not here and _is_loopback(str(address[0])):
            continue  # a name that is only here that of the loopback interface
        with contextlib.suppress(OSError):
            return socket.create_server(address[:2], family=family)
    return None
