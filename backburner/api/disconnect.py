"""A client that goes away ends what is done for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from backburner.api.errors import ApiError

# nginx's "client closed request". Nobody receives it.
CLIENT_CLOSED_REQUEST = 499

T = TypeVar("T")


def client_left() -> ApiError:
    return ApiError(CLIENT_CLOSED_REQUEST, "the client has closed its connection")


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has closed its connection. The body has to be read already."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if the client goes away first; then the work is cancelled."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
