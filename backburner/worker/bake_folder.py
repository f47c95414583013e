"""Baked pages on disk, by content: found again after a restart, checked before use, the least recently used removed."""

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.blob import Image
from backburner.coreml.package import PACKAGE, PAGE_FILE, PageRecord, Template, write_package
from backburner.coreml.selftest import Errors
from backburner.disk import make_locked, take_lock
from backburner.errors import ConfigError

log = logging.getLogger("backburner.worker")

# Locked by the worker that bakes the page.
OWNER_FILE = "owner"
# Only what has such a name is ours: --bake-dir may be a folder of other things that has a pages/.
PAGE_NAME = re.compile("[0-9a-f]{64}")
NEW_NAME = re.compile("new-[0-9a-f]{16}")
WEIGHTS = Path(PACKAGE) / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page whose files have the checksums that they were written with."""

    folder: Path
    image: Image  # mapped, read-only
    exponents: npt.NDArray[np.int16]


class BakeFolder:
    """`templates/NAME/` and `pages/NAME/` in one folder. Several workers may share it; a page appears whole.

    Files are not forced to the disk: what a power cut leaves half-written fails its checksum and is baked again.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Raises ConfigError."""
        self.path = path
        self._pages = path / "pages"
        self._bytes_max = bytes_max
        try:
            self._pages.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
        except OSError as e:
            raise ConfigError(f"--bake-dir {path} cannot hold baked pages: {e}") from None

    def template(self, name: str) -> Path:
        """Where the template of that name is, or is to be."""
        return self.path / "templates" / name

    def find(self, name: str, template: Template) -> StoredPage | None:
        """A page, if it is there and sound. A damaged one is removed, so that it is baked again."""
        folder = self._pages / name
        if not (folder / PAGE_FILE).exists():
            return None
        try:
            page = _read(folder, template)
        except (OSError, ValueError, KeyError, TypeError) as e:
            log.warning(
                "a baked page on disk is damaged and will be baked again: %s: %s", folder.name[:12], e
            )
            shutil.rmtree(folder, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)  # used now
        return page

    def write(
        self, name: str, template: Template, image: Image, exponents: npt.NDArray[np.int16]
    ) -> "UnprovenPage":
        """The page's files, without page.json. Raises OSError, and leaves nothing, when they cannot be written."""
        digest = hashlib.sha256(image.data).hexdigest()
        page = PageRecord(
            template.manifest.spec_sha256,
            digest,
            template.manifest.shape.page_tokens,
            exponents.tolist(),
            None,
        )
        folder = self._pages / name
        _remove_abandoned(folder)
        unproven = UnprovenPage(self, folder, page, self._claim(folder))
        try:
            write_package(folder / PACKAGE, template.spec, image)
        except BaseException:
            unproven.discard()
            raise
        return unproven

    def used_bytes(self) -> int:
        return sum(size for _, _, size in self._entries())

    def make_room(self, needed: int) -> None:
        """Removes the pages that were not used for longest until `needed` more bytes are within the limit.

        A page that is loaded stays usable: its file goes when the last who maps it lets go.
        """
        entries = self._entries()
        total = sum(size for _, _, size in entries)
        for _, folder, size in sorted(entries, key=lambda entry: entry[0]):
            if total + needed <= self._bytes_max:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size

    def fits(self, needed: int) -> bool:
        """Whether one page of so many bytes can ever be kept."""
        return needed <= self._bytes_max

    def _claim(self, folder: Path) -> int:
        """Makes `folder`; returns its lock. Raises OSError if it is there: another worker is baking the page."""
        return make_locked(self._pages / f"new-{secrets.token_hex(8)}", folder, OWNER_FILE)

    def _entries(self) -> list[tuple[float, Path, int]]:
        """Last use, folder and size of every page; what vanishes meanwhile was removed by another worker."""
        found = []
        for folder in self._pages.iterdir():
            if not PAGE_NAME.fullmatch(folder.name):
                continue
            with contextlib.suppress(OSError):
                if (folder / PAGE_FILE).exists():
                    found.append((folder.stat().st_mtime, folder, _size(folder)))
        return found

    def _sweep(self) -> None:
        """Removes what bakes that were killed have left."""
        for folder in self._pages.iterdir():
            if PAGE_NAME.fullmatch(folder.name) or NEW_NAME.fullmatch(folder.name):
                _remove_abandoned(folder)


class UnprovenPage:
    """A page's files while its self-test runs. They have their final place, since a device caches by path; what makes
    them a page is page.json, written when the self-test has passed."""

    def __init__(self, parent: BakeFolder, folder: Path, page: PageRecord, lock: int) -> None:
        self._parent = parent
        self.folder = folder
        self._page = page
        self._lock: int | None = lock

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    def keep(self, errors: Errors) -> None:
        """Raises OSError; then it is to be discarded."""
        fields = asdict(self._page) | {"errors": asdict(errors)}
        self._parent.make_room(_size(self.folder))
        unnamed = self.folder / (PAGE_FILE + ".part")
        unnamed.write_text(json.dumps(fields | {"sha256": _digest(fields)}) + "\n")
        unnamed.rename(self.folder / PAGE_FILE)
        self._unlock()

    def discard(self) -> None:
        """Removes the files, unless that was done. Who has mapped them may go on."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_abandoned(folder: Path) -> None:
    """Removes a page that nobody is going to finish; leaves everything else."""
    if folder.is_symlink() or not folder.is_dir():
        return
    lock = None
    with contextlib.suppress(OSError):  # a living worker has it, or it was removed this moment
        with contextlib.suppress(FileNotFoundError):  # a removal was cut short: nobody bakes without a lock
            lock = take_lock(folder / OWNER_FILE)
        if not (folder / PAGE_FILE).exists():  # it is written under the lock
            shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _digest(fields: dict[str, Any]) -> str:
    """Of page.json itself: a wrong exponent is as bad as a wrong weight."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _read(folder: Path, template: Template) -> StoredPage:
    """Raises OSError, ValueError, KeyError or TypeError for anything but a sound page of this template."""
    fields = json.loads((folder / PAGE_FILE).read_text())
    if fields.pop("sha256") != _digest(fields):
        raise ValueError("page.json does not have its checksum")
    if fields["spec_sha256"] != template.manifest.spec_sha256:
        raise ValueError("it was made from another template")
    spec = (folder / WEIGHTS).parent.parent / "model.mlmodel"
    if hashlib.sha256(spec.read_bytes()).hexdigest() != template.manifest.spec_sha256:
        raise ValueError("the spec does not have its checksum")
    image: Image = np.memmap(folder / WEIGHTS, np.uint8, "r")
    if image.size != template.manifest.file_bytes or (
        hashlib.sha256(image.data).hexdigest() != fields["weights_sha256"]
    ):
        raise ValueError("weight.bin does not have its checksum")
    shape = template.manifest.shape
    exponents = np.array(fields["exponents"], np.int16).reshape(shape.kv_heads, shape.head_dim)
    return StoredPage(folder, image, exponents)
