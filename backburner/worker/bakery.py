"""The worker's baked pages: what serving asks of them, and what they tell of themselves."""

import logging
from collections.abc import Sequence
from typing import Any

from backburner.attention.baked import BakedEngine, BakedRun
from backburner.attention.engine import Geometry
from backburner.errors import ConfigError
from backburner.transport.messages import BakeState
from backburner.worker.baker import Baker, BakeSettings, check_run
from backburner.worker.shelf import RunName, Shelf
from backburner.worker.store import PageStore

log = logging.getLogger("backburner.worker")


class Bakery:
    """A shelf of baked pages, the baker that fills it, and the choice of which pages answer. One host at a time."""

    def __init__(self, store: PageStore, engine: BakedEngine, settings: BakeSettings) -> None:
        """Raises ConfigError when the folder for baked pages cannot be made."""
        self._settings = settings
        self._shelf = Shelf()
        self._baker = Baker(store, engine.ordinary, self._shelf, settings)
        self._refusal = ""  # why nothing of this host is baked
        self._keys_asked = 0  # of queries that a baked page could have answered
        self._keys_served = 0
        store.give_spare_to(self._shelf.shed)

    def greet(self, geometry: Geometry, layers: Sequence[int]) -> None:
        """A host's pages will look like this."""
        try:
            check_run(geometry, self._settings.baked_tokens)
        except ConfigError as e:
            self._refusal = str(e)
            self._baker.forget_host()
            log.warning("pages of this host are not baked: %s", e)
            return
        self._refusal = ""
        self._baker.greet(geometry, layers)

    def wake(self) -> None:
        """A sequence's list of pages has changed."""
        if not self._refusal:
            self._baker.wake()

    def arrange(
        self,
        geometry: Geometry,
        layer: int,
        keys: Sequence[bytes],
        first: int,
        pages: Sequence[Any],
        tokens: int,
    ) -> list[Any]:
        """The pages with the oldest runs that are baked in place of theirs, as far as the share goes.

        pages: of `keys`[first:], the sequence's whole list. Found by content: a sequence that was rewound and written
        anew has other keys from there on, and none of its old baked pages.
        """
        if self._refusal:
            return list(pages)
        baked_tokens, run = self._settings.baked_tokens, self._settings.baked_tokens // geometry.page_tokens
        stop = first + len(pages)
        left = self._settings.share.pages(len(pages) * geometry.page_tokens, tokens, baked_tokens)
        arranged: list[Any] = []
        served = 0
        at = first
        while at < stop:
            found = None
            if left and at % run == 0 and at + run <= stop:
                found = self._shelf.get(RunName(tuple(keys[at : at + run]), layer, geometry))
            if found is not None and tokens <= found.query_tokens:
                arranged.append(BakedRun(found, tuple(pages[at - first : at - first + run])))
                left, served, at = left - 1, served + 1, at + run
            else:
                arranged.append(pages[at - first])
                at += 1
        if served or tokens == 1:
            self._keys_asked += len(pages) * geometry.page_tokens
            self._keys_served += served * baked_tokens
        return arranged

    def state(self) -> BakeState:
        """For Stats."""
        baker = self._baker
        return BakeState(
            pages=len(self._shelf),
            baking=int(baker.baking is not None),
            refused=len(baker.refused),
            shed=self._shelf.shed_pages,
            reused=baker.reused,
            bytes=self._shelf.bytes,
            share=self._keys_served / self._keys_asked if self._keys_asked else 0.0,
            error=(self._refusal or baker.error)[:1000],
        )

    def close(self, timeout_s: float) -> None:
        self._baker.close(timeout_s)
