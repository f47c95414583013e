"""Threads of our own for what blocks: parsing a body, rendering a template, tokenising."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from starlette.types import Receive

from backburner.api.disconnect import client_left, unless_disconnected
from backburner.errors import EngineDead

# More would only compete with each other and the engine: this is work for a CPU, most of it under the GIL.
PREPARING = 4
# So few that whoever counts tokens in a loop leaves the cores to those who want an answer.
LOOKING = 2

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Threads:
    """Two pools, so that nobody who asks for an answer waits for those who only count tokens.

    asyncio's own pool is not used: its end waits, without a limit, for everything that runs in it.
    """

    def __init__(self) -> None:
        self._preparing = ThreadPoolExecutor(PREPARING, "prepare")
        self._looking = ThreadPoolExecutor(LOOKING, "look")
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def prepare(self, receive: Receive, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `work` makes of a request that is to be answered by the model.

        A client that leaves gives up its place; what runs already runs to its end, and its result is dropped. Raises
        EngineDead once the server ends.
        """
        return await self._run(self._preparing, receive, work, *args)

    async def look(self, receive: Receive, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """The same for a request that only asks about tokens and prompts."""
        return await self._run(self._looking, receive, work, *args)

    def close(self) -> None:
        """Ends all waits. Threads that still run are waited for by nobody but the interpreter, at its exit: by then the
        engine is closed."""
        self._closed = True
        for future in tuple(self._running):
            future.cancel()
        for pool in (self._preparing, self._looking):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _run(
        self, pool: ThreadPoolExecutor, receive: Receive, work: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        async def run() -> T:
            if self._closed:
                raise shutting_down()
            future = asyncio.get_running_loop().run_in_executor(pool, work, *args)
            self._running.add(future)
            try:
                return await future
            except asyncio.CancelledError:
                if self._closed:
                    raise shutting_down() from None
                raise
            finally:
                self._running.discard(future)

        done = await unless_disconnected(receive, run())
        if done is None:
            raise client_left()
        return done


def shutting_down() -> EngineDead:
    return EngineDead("the server is shutting down")
