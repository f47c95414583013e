"""The thread that bakes: one page at a time, beside serving, in memory that no page needs."""

import hashlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.attention.baked import BakedPage
from backburner.attention.engine import AttentionEngine, Geometry
from backburner.coreml.blob import Image, new_image, patch
from backburner.coreml.package import Template, page_errors
from backburner.coreml.runtime import PageRuntime
from backburner.coreml.selftest import O_REL_MAX, Errors, Predict, require
from backburner.errors import BakeRefused, ConfigError, UnknownPage
from backburner.worker.background import lower_priority
from backburner.worker.bake_folder import BakeFolder, StoredPage, UnprovenPage
from backburner.worker.bake_share import Share
from backburner.worker.bake_template import ready_template, shape_for, shape_name
from backburner.worker.shelf import Reservation, RunName, Shelf
from backburner.worker.store import PageStore

log = logging.getLogger("backburner.worker")

# After a failure, or when pages needed a baked page's memory. Failed compilations stall Apple's service for all who
# use it, and 15 s between two is what others found to keep it alive.
PAUSE_S = 15.0

# After a program could not be made: ten minutes. Making it keeps a core busy for seconds, and what was missing (disk
# space, memory, coremltools) seldom comes sooner.
PROGRAM_PAUSES = 40

# Refusals that are remembered of pages that nobody wants now: each is a page that is not tried again. 128 are a context
# of 128k at 16 layers.
REFUSALS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class BakeSettings:
    """What a worker bakes, and where it keeps it."""

    runtime: PageRuntime
    share: Share
    baked_tokens: int
    weights: str = "float16"
    folder: Path | None = None  # None: nothing outlives the process
    folder_bytes: int = 0
    o_rel_max: float = O_REL_MAX  # of a page's self-test
    pause_s: float = PAUSE_S


@dataclass(frozen=True, slots=True)
class _Host:
    """Whose pages are baked."""

    geometry: Geometry
    layers: tuple[int, ...]


class _Lost(Exception):
    """The memory of the page that is being baked was needed."""


class Baker:
    """Bakes what bound sequences will be served from, the oldest pages first, and puts it on the shelf."""

    def __init__(
        self, store: PageStore, engine: AttentionEngine, shelf: Shelf, settings: BakeSettings
    ) -> None:
        """engine: the ordinary one, which has laid out the store's pages. Raises ConfigError for the folder."""
        self._store = store
        self._engine = engine
        self._shelf = shelf
        self._settings = settings
        self._folder = (
            BakeFolder(settings.folder, settings.folder_bytes) if settings.folder is not None else None
        )
        self._templates: dict[Geometry, Template | str] = {}  # str: why there can be none
        self._host: _Host | None = None
        self._changed = threading.Condition()
        self._work = False  # something may have to be baked
        self._closing = False
        self._pause_until = 0.0
        self.refused: dict[RunName, str] = {}
        self.baking: RunName | None = None
        self.reused = 0  # pages found on disk
        self.error = ""  # the last one
        self._thread = threading.Thread(target=self._main, name="baker", daemon=True)
        self._thread.start()

    def greet(self, geometry: Geometry, layers: Sequence[int]) -> None:
        """The host that is served now."""
        with self._changed:
            self._host = _Host(geometry, tuple(layers))
        self.wake()

    def forget_host(self) -> None:
        """The host that is served now has no pages to bake."""
        with self._changed:
            self._host = None

    def wake(self) -> None:
        """Pages were bound, or memory has become free."""
        with self._changed:
            self._work = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Ends the thread after the step that it is in."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    # -- what to bake ---------------------------------------------------------------------------------------------

    def _main(self) -> None:
        lower_priority()
        try:
            while (name := self._next()) is not None:
                self._bake(name)
        except Exception as e:  # a fault of ours: the ordinary engine serves all
            log.exception("baking has ended")
            self.error = f"{type(e).__name__}: {e}"
        finally:
            self._engine.leave_thread()

    def _next(self) -> RunName | None:
        """Waits for a page that is to be baked. None when closing."""
        while True:
            with self._changed:
                while not self._closing and not (self._work and time.monotonic() >= self._pause_until):
                    left = self._pause_until - time.monotonic()
                    self._changed.wait(left if self._work and left > 0 else None)
                if self._closing:
                    return None
                self._work = False
                host = self._host
            self._collect_failed()
            wanted = self._wanted(host)
            self._forget_refusals(wanted)
            for name in wanted:
                if name not in self._shelf and name not in self.refused:
                    with self._changed:
                        self._work = True  # look again after this one
                    return name

    def _collect_failed(self) -> None:
        failed, count = self._shelf.drop_failed()
        self._store.return_spare(count)
        for name, why in failed:
            self._refuse(name, why)

    def _forget_refusals(self, wanted: list[RunName]) -> None:
        """Only of pages that are not wanted: the others would be tried again at once, and refused, and so on."""
        if len(self.refused) > REFUSALS_MAX:
            kept = set(wanted)
            self.refused = {name: why for name, why in self.refused.items() if name in kept}

    def _wanted(self, host: _Host | None) -> list[RunName]:
        """What serving would use, in the order in which to bake it: whole runs of pages, all layers of each."""
        if host is None:
            return []
        names: dict[RunName, None] = {}
        for keys in self._store.bound_lists():
            for run in runs_of(keys, host.geometry, self._settings.baked_tokens, self._settings.share):
                names.update((RunName(run, layer, host.geometry), None) for layer in host.layers)
        return list(names)

    # -- one bake -------------------------------------------------------------------------------------------------

    def _bake(self, name: RunName) -> None:
        """Bakes one page, or remembers why not. Never raises for what a page, a disk or a device may do."""
        try:
            template = self._template(name.geometry)
        except BakeRefused as e:
            self._refuse(name, str(e))
            return
        except Exception as e:  # no space, no memory, no coremltools; Core ML's own
            self._hindered("pages of this host are not baked", e)
            self._pause(PROGRAM_PAUSES)
            return
        count = template.manifest.file_bytes
        if not self._store.take_spare(count):
            self._store.return_spare(self._shelf.drop_idle(count, set(self._wanted(self._host))))
            if not self._store.take_spare(count):
                self._pause()  # pages come first; later there may be room
                return
        reservation = self._shelf.reserve(count)
        self.baking = name
        try:
            page = self._page(name, template, reservation)
            if self._shelf.add(name, page, reservation):
                return
            raise _Lost
        except _Lost:
            self._pause()
        except UnknownPage:  # its sequence is gone; if it is not, the same page would be tried again at once
            self._pause()
        except BakeRefused as e:
            self._refuse(name, str(e))
        except (MemoryError, OSError) as e:  # no space, or somebody cleans up in the folder
            self._hindered("a page was not baked", e)
            self._pause()
        except Exception as e:  # whatever a device may raise: this page stays with the ordinary engine
            self._refuse(name, f"{type(e).__name__}: {e}")
            self._pause()
        finally:
            self.baking = None
            # Nothing to give back if it is on the shelf, or lost.
            self._store.return_spare(self._shelf.cancel(reservation))

    def _page(self, name: RunName, template: Template, reservation: Reservation) -> BakedPage:
        """The page from disk, or baked and proven."""
        settings, manifest = self._settings, template.manifest
        stored = self._folder.find(self._file_name(name, template), template) if self._folder else None
        predict = None if stored is None else self._reuse(name, template, stored)
        if stored is not None and predict is not None:
            self.reused += 1
            return BakedPage(name.geometry, manifest, stored.exponents, predict, reservation.bytes)
        k, v = self._rows(name)
        _go_on(reservation)
        image = new_image(manifest)
        exponents = patch(manifest, image, k, v)
        _go_on(reservation)
        unproven = self._write(name, template, image, exponents)
        try:
            if unproven is not None:
                image = np.memmap(
                    unproven.weights, np.uint8, "r"
                )  # the memory of what is on disk can be had back
            predict = settings.runtime.load(manifest, image, unproven.folder if unproven else None)
            _go_on(reservation)
            scale = name.geometry.scale
            errors = page_errors(template, image, k, v, exponents, scale, predict)
            require(errors, settings.o_rel_max)
            if unproven is not None:
                self._keep(unproven, errors)
        except BaseException:
            if unproven is not None:
                unproven.discard()
            raise
        log.debug("baked layer %d: o %.1e, lse %.1e", name.layer, errors.o_rel, errors.lse_abs)
        return BakedPage(name.geometry, manifest, exponents, predict, reservation.bytes)

    def _reuse(self, name: RunName, template: Template, stored: StoredPage) -> Predict | None:
        """A page from disk, loaded. None if it is of no use: then it is removed, and baked anew.

        What a runtime has compiled is not among the bytes whose checksums were found right, so it is proven again.
        """
        runtime = self._settings.runtime
        try:
            predict = runtime.load(template.manifest, stored.image, stored.folder)
            if runtime.needs_package:
                k, v = self._rows(name)
                scale = name.geometry.scale
                errors = page_errors(template, stored.image, k, v, stored.exponents, scale, predict)
                require(errors, self._settings.o_rel_max)
        except (MemoryError, UnknownPage):
            raise
        except Exception as e:  # Core ML's own, too
            log.warning("a baked page on disk cannot be used and will be baked again: %s", e)
            shutil.rmtree(stored.folder, ignore_errors=True)
            return None
        return predict

    def _rows(self, name: RunName) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """K and V of the run, [kv_heads, baked_tokens, head_dim] each. Complete pages never change: no lock is held."""
        pages = self._store.pages_of(name.keys, name.layer, name.geometry)
        parts = [self._engine.rows(page, 0, name.geometry.page_tokens) for page in pages]
        k, v = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
        return k, v

    def _write(
        self, name: RunName, template: Template, image: Image, exponents: npt.NDArray[np.int16]
    ) -> UnprovenPage | None:
        """The files of a page; None where there is no folder for them, or no space: it then lives in memory."""
        if self._folder is None or not self._folder.fits(image.nbytes):
            return None
        try:
            self._folder.make_room(image.nbytes)
            return self._folder.write(self._file_name(name, template), template, image, exponents)
        except OSError as e:
            self._hindered("a baked page was not kept on disk", e)
            if self._settings.runtime.needs_package:
                raise
            return None

    def _keep(self, unproven: UnprovenPage, errors: Errors) -> None:
        """Makes a page of the files. Without them a proven page is as good, if its runtime does not need them."""
        try:
            unproven.keep(errors)
        except OSError as e:
            unproven.discard()
            self._hindered("a baked page was not kept on disk", e)
            if self._settings.runtime.needs_package:
                raise

    def _file_name(self, name: RunName, template: Template) -> str:
        """Of the content: template, runtime, and all that the rows follow from."""
        g, runtime = name.geometry, self._settings.runtime
        text = f"{template.manifest.spec_sha256} {runtime.name}{runtime.build} {name.layer} {g.dtype} {g.scale!r} "
        return hashlib.sha256(text.encode() + b"".join(name.keys)).hexdigest()

    def _template(self, geometry: Geometry) -> Template:
        """Raises BakeRefused if pages of this geometry are not baked here, and whatever hindered making a program."""
        if geometry not in self._templates:
            try:
                self._templates[geometry] = self._new_template(geometry)
            except BakeRefused as e:
                self._templates[geometry] = str(e)
        template = self._templates[geometry]
        if isinstance(template, str):
            raise BakeRefused(template)
        return template

    def _new_template(self, geometry: Geometry) -> Template:
        settings = self._settings
        try:
            shape = shape_for(geometry, settings.baked_tokens, settings.weights)
        except ConfigError as e:  # no program can be built for it
            raise BakeRefused(str(e)) from None
        name = shape_name(shape)
        if self._folder is not None:
            return ready_template(shape, self._folder.template(name), settings.runtime)
        with tempfile.TemporaryDirectory() as folder:
            return ready_template(shape, Path(folder) / name, settings.runtime)

    def _refuse(self, name: RunName, why: str) -> None:
        self.refused[name] = self.error = why
        log.warning("layer %d of a page stays with the ordinary engine: %s", name.layer, why)

    def _hindered(self, what: str, why: Exception) -> None:
        """Something that may go another time."""
        reason = "too little memory" if isinstance(why, MemoryError) else str(why) or type(why).__name__
        self.error = f"{what}: {reason}"
        log.warning("%s", self.error)

    def _pause(self, times: int = 1) -> None:
        self._pause_until = time.monotonic() + times * self._settings.pause_s


def runs_of(
    keys: Sequence[bytes], geometry: Geometry, baked_tokens: int, share: Share
) -> list[tuple[bytes, ...]]:
    """The leading runs of a sequence's pages that are worth baking: as many as the share of its keys says."""
    pages = baked_tokens // geometry.page_tokens
    count = share.pages_wanted(len(keys) * geometry.page_tokens, baked_tokens)
    return [tuple(keys[i * pages : (i + 1) * pages]) for i in range(count)]


def check_run(geometry: Geometry, baked_tokens: int) -> None:
    """Raises ConfigError if no run of whole pages is a baked page."""
    if baked_tokens % geometry.page_tokens:
        raise ConfigError(
            f"--bake-tokens {baked_tokens} is not a multiple of the host's --page-tokens {geometry.page_tokens}."
        )


def _go_on(reservation: Reservation) -> None:
    if reservation.lost:
        raise _Lost
