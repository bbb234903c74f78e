"""The client of hubs, huggingface_hub, made to use the connections of `emberge.network`.

By default, huggingface_hub follows redirects to any server, reads answers of any length, and waits without
limit. Its transport is therefore replaced: only the hub's own servers are contacted, at allowed addresses,
the size of their answers is limited, and waiting requests end with the work. If the environment sets a proxy,
the proxy connects: then names are checked, but addresses are not. Files fetched by hf_xet do not use these
connections.
"""

from __future__ import annotations

import importlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from emberge.network.addresses import Origin, hub_origin, is_of_hub
from emberge.network.hub_transport import HubState, transport_of
from emberge.network.interruptible import POLL, Stop, call_within
from emberge.network.request_errors import ForbiddenAddressError, RequestStoppedError
from emberge.wording import printable

T = TypeVar("T")


class HubClient:
    """The client of hubs in this process; one for all threads."""

    def __init__(self) -> None:
        self._state = HubState()
        self._guarded, self._lock = False, threading.Lock()

    def ask(self, call: Callable[[], T]) -> T:
        """Return the result of a huggingface_hub call; Ctrl-C ends it and all requests of its threads."""
        self.guard()
        try:
            return call_within("the hub", call, None, Stop())
        except (KeyboardInterrupt, RequestStoppedError):
            self._state.stop.set()
            time.sleep(2 * POLL)  # the threads of the client look
            self._state.stop = Stop(alone=True)
            raise

    @contextmanager
    def largest_file(self, size: int | None) -> Iterator[None]:
        """Refuse answers longer than the largest announced file while the `with` block runs."""
        self._state.largest = size
        try:
            yield
        finally:
            self._state.largest = None

    def guard(self) -> None:
        """Make huggingface_hub use the connections of `emberge.network` in the whole process."""
        with self._lock:
            if self._guarded:
                return
            from huggingface_hub import get_session, set_client_factory

            client = get_session()
            library = importlib.import_module(type(client).__module__.partition(".")[0])
            hooks = {**client.event_hooks}
            hooks["request"] = [*hooks.get("request", ()), _require_own]
            options: dict[str, Any] = {
                "event_hooks": hooks,
                "follow_redirects": True,
                "timeout": None,
            }

            def make() -> Any:
                guarded_options = (
                    {} if _has_proxy() else {"transport": transport_of(library, self._state)}
                )
                return library.Client(**options, **guarded_options)

            set_client_factory(make)
            self._guarded = True


hub_client = HubClient()
"""The client of hubs in this process."""


def _has_proxy() -> bool:
    """Return whether the environment sets a proxy for requests to the hub."""
    origin, proxies = hub_origin(), urllib.request.getproxies()
    return bool(proxies.get(origin.scheme) or proxies.get("all")) and not (
        urllib.request.proxy_bypass(origin.host)
    )


def _require_own(request: Any) -> None:
    """Require that a request or redirect goes to the hub; uploads may go where it directs them.

    Raises:
        ForbiddenAddressError: if it goes elsewhere.
    """
    origin, hub = Origin.of(str(request.url)), hub_origin()
    asks = request.method in ("GET", "HEAD")
    if origin == hub or is_of_hub(origin) or (not asks and origin.scheme == "https"):
        return
    raise ForbiddenAddressError(
        f"{hub}: leads to another server, {printable(str(origin), 200)}, which is not the hub's; set "
        "HF_ENDPOINT to the hub that you trust"
    )
