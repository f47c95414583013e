"""The spill on real files: what comes back, what is refused, and what is left behind."""

import errno
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.attention.select import make_engine
from backburner.errors import ConfigError
from backburner.kv import spill as spill_module
from backburner.kv import spill_file
from backburner.kv.spill import Spill
from tests.host import ENGINES, until
from tests.test_attention_engines import DTYPES, assert_same_bits, random_q, random_rows

LAYERS = (3, 7)
GEOMETRY = Geometry(4, 2, 64, 50, "bfloat16", 0.125)
CAP_BYTES = 2**30
KEY = b"k" * 32

Layers = list[tuple[int, Any]]


def full_page(engine: Any, geometry: Geometry = GEOMETRY, seed: int = 0) -> Layers:
    layers = []
    for layer in LAYERS:
        page = engine.new_page(geometry)
        engine.append(
            page, *random_rows(np.random.default_rng((seed, layer)), geometry, geometry.page_tokens)
        )
        layers.append((layer, page))
    return layers


def key_of(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spill"


Open = Callable[..., Spill]


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    spills: list[Spill] = []

    def make(cap_bytes: int = CAP_BYTES, engine: Any = None, geometry: Geometry = GEOMETRY) -> Spill:
        spills.append(Spill(folder, cap_bytes, engine or NumpyEngine(), geometry, LAYERS))
        return spills[-1]

    yield make
    for spill in spills:
        spill.close()
    assert list(folder.iterdir()) == [], "something was left behind"


class Disk:
    """Stands between the writer and its file: counts, waits and fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.begun: list[bytes] = []
        self.fails_with: OSError | None = None
        write_page, write = spill_module.write_page, spill_file._write

        def counted(path: Path, key: bytes, *rest: Any) -> bool:
            self.begun.append(key)
            assert self.open.wait(20)
            return write_page(path, key, *rest)

        def failing(file: Any, data: Any) -> None:
            if self.fails_with is not None:
                raise self.fails_with
            write(file, data)

        monkeypatch.setattr(spill_module, "write_page", counted)
        monkeypatch.setattr(spill_file, "_write", failing)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.open.set()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ENGINES)
def test_a_page_comes_back_bit_for_bit(opened: Open, name: str, dtype: str) -> None:
    engine: Any = make_engine(name)
    geometry = Geometry(4, 2, 80, 70, dtype, 0.125)
    spill = opened(engine=engine, geometry=geometry)
    original = full_page(engine, geometry)
    spill.offer(KEY, original)
    until(lambda: spill.written(KEY))
    assert not spill.refused(KEY)
    q = random_q(np.random.default_rng(1), geometry, 5)
    for _ in range(2):  # the second time from the cached mapping
        for layer, page in original:
            back = spill.page(KEY, layer)
            assert back is not page
            assert_same_bits(*engine.attend(geometry, q, [back]), *engine.attend(geometry, q, [page]))
            for a, b in zip(engine.storage(back), engine.storage(page), strict=True):
                assert a.tobytes() == b.tobytes()


def test_pages_lie_mapped_and_aligned_in_a_file_of_the_size_that_was_counted(opened: Open) -> None:
    spill = opened()
    spill.offer(KEY, full_page(NumpyEngine()))
    until(lambda: spill.written(KEY))
    (path,) = spill.folder.glob("*.page")
    assert spill.bytes_used == path.stat().st_size
    assert spill.pages == 1
    page = spill.page(KEY, LAYERS[0])
    assert page.filled == GEOMETRY.page_tokens
    for array in (page.k, page.v):
        assert not array.flags.writeable
        assert array.ctypes.data % spill_file.ALIGNMENT == 0


def test_only_the_owner_may_look(opened: Open, folder: Path) -> None:
    spill = opened()
    spill.offer(KEY, full_page(NumpyEngine()))
    until(lambda: spill.written(KEY))
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_was_never_offered_is_neither_written_nor_refused(opened: Open) -> None:
    spill = opened()
    assert not spill.written(KEY)
    assert not spill.refused(KEY)
    assert spill.page(KEY, LAYERS[0]) is None
    spill.release([KEY])


@pytest.mark.parametrize("place", ["magic", "meta", "layer", "end"])
def test_a_damaged_byte_gives_no_page(opened: Open, caplog: pytest.LogCaptureFixture, place: str) -> None:
    spill = opened()
    original = full_page(NumpyEngine())
    spill.offer(KEY, original)
    until(lambda: spill.written(KEY))
    (path,) = spill.folder.glob("*.page")
    size = path.stat().st_size
    with open(path, "r+b") as file:
        if place == "end":
            file.truncate(size - 1)
        else:
            file.seek({"magic": 0, "meta": spill_file.HEADER.size + 9, "layer": size // 2 + 5000}[place])
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    if place == "layer":  # the other one is still good
        assert spill.page(KEY, LAYERS[0]) is not None
    assert spill.page(KEY, LAYERS[1]) is None
    assert "damaged" in caplog.text
    assert spill.page(KEY, LAYERS[0]) is None, "a page without one of its layers is of no use"
    assert spill.refused(KEY)
    assert (spill.bytes_used, list(spill.folder.glob("*.page"))) == (0, [])
    spill.offer(KEY, original)
    until(lambda: spill.written(KEY))
    assert spill.page(KEY, LAYERS[1]) is not None
    spill.release([KEY, KEY])


def test_beyond_the_cap_pages_are_refused_with_one_warning(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    engine = NumpyEngine()
    spill = opened()
    spill.offer(KEY, full_page(engine))
    page_bytes = spill.bytes_used
    spill.close()
    spill = opened(cap_bytes=2 * page_bytes + page_bytes // 2)
    for number in range(4):
        spill.offer(key_of(number), full_page(engine, seed=number))
    until(lambda: spill.pages == 2)
    assert [spill.refused(key_of(number)) for number in range(4)] == [False, False, True, True]
    assert spill.page(key_of(2), LAYERS[0]) is None
    assert caplog.text.count("If the worker is lost") == 1
    spill.release([key_of(0)])
    spill.offer(key_of(3), full_page(engine, seed=3))
    until(lambda: spill.written(key_of(3)))
    spill.release([key_of(number) for number in (1, 2, 3, 3)])  # a refused offer counts as a reference, too
    assert (spill.bytes_used, spill.pages) == (0, 0)


def test_a_full_disk_refuses_and_keeps_what_is_written(
    opened: Open, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    engine = NumpyEngine()
    spill = opened()
    spill.offer(key_of(0), full_page(engine))
    until(lambda: spill.written(key_of(0)))
    disk.open.clear()
    disk.fails_with = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for number in (1, 2):
        spill.offer(key_of(number), full_page(engine, seed=number))
    disk.open.set()
    until(lambda: spill.refused(key_of(1)) and spill.refused(key_of(2)))
    disk.fails_with = None
    spill.offer(key_of(3), full_page(engine, seed=3))
    assert spill.refused(key_of(3))
    assert spill.page(key_of(0), LAYERS[0]) is not None
    assert caplog.text.count("If the worker is lost") == 1
    assert os.strerror(errno.ENOSPC) in caplog.text
    assert [path.name for path in spill.folder.iterdir() if path.name != "lock"] == ["1.page"]
    assert spill.bytes_used == (spill.folder / "1.page").stat().st_size
    spill.release([key_of(number) for number in range(4)])
    assert spill.bytes_used == 0


def test_a_disk_that_stalls_is_given_up(
    opened: Open, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spill_module, "QUEUE_BYTES", 1)
    monkeypatch.setattr(spill_module, "OFFER_DEADLINE_S", 0.2)
    engine = NumpyEngine()
    spill = opened()
    disk.open.clear()
    spill.offer(key_of(0), full_page(engine))
    spill.offer(key_of(1), full_page(engine, seed=1))
    assert spill.refused(key_of(1))
    assert caplog.text.count("If the worker is lost") == 1
    disk.open.set()
    until(lambda: spill.written(key_of(0)))


def test_an_offer_waits_for_a_slow_disk(opened: Open, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_module, "QUEUE_BYTES", 1)
    engine = NumpyEngine()
    spill = opened()
    disk.open.clear()
    spill.offer(key_of(0), full_page(engine))
    second = threading.Thread(target=spill.offer, args=(key_of(1), full_page(engine, seed=1)))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    disk.open.set()
    second.join(10)
    assert not second.is_alive()
    until(lambda: spill.pages == 2)


def test_a_page_is_written_once_and_removed_with_its_last_reference(opened: Open, disk: Disk) -> None:
    engine = NumpyEngine()
    spill = opened()
    for _ in range(3):
        spill.offer(KEY, full_page(engine))
    until(lambda: spill.written(KEY))
    spill.release([KEY])
    spill.release([KEY])
    page = spill.page(KEY, LAYERS[0])
    expected = page.k.tobytes()
    spill.release([KEY])
    assert disk.begun == [KEY]
    assert not spill.written(KEY)
    assert spill.page(KEY, LAYERS[0]) is None
    assert (spill.bytes_used, spill.pages, list(spill.folder.glob("*.page"))) == (0, 0, [])
    assert page.k.tobytes() == expected, "whoever still attends to the page keeps its mapping"


def test_a_release_cancels_what_is_not_yet_written(opened: Open, disk: Disk) -> None:
    engine = NumpyEngine()
    spill = opened()
    disk.open.clear()
    for number in range(3):
        spill.offer(key_of(number), full_page(engine, seed=number))
    until(lambda: disk.begun == [key_of(0)])
    spill.release([key_of(0), key_of(1)])  # one is being written, the other one waits
    spill.offer(key_of(0), full_page(engine))  # and is wanted again
    disk.open.set()
    until(lambda: spill.pages == 2)
    assert disk.begun == [key_of(0), key_of(2), key_of(0)]
    files = list(spill.folder.glob("*.page"))
    assert len(files) == 2
    assert spill.bytes_used == sum(path.stat().st_size for path in files)
    assert spill.page(key_of(0), LAYERS[0]) is not None


def test_the_spill_keeps_no_page_in_memory(opened: Open) -> None:
    class Watched(np.ndarray):  # plain arrays take no weak references
        pass

    spill = opened()
    layers = full_page(NumpyEngine())
    watched = layers[0][1].k = layers[0][1].k.view(Watched)
    there = weakref.ref(watched)
    spill.offer(KEY, layers)
    del layers, watched
    until(lambda: spill.written(KEY) and there() is None)


def test_concurrent_offers_and_releases_leave_exactly_what_is_still_wanted(opened: Open, disk: Disk) -> None:
    engine = NumpyEngine()
    spill = opened()
    pages = [full_page(engine, seed=number) for number in range(6)]
    faults: list[BaseException] = []

    def conversation(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(40):
                number = int(rng.integers(0, 6))
                spill.offer(key_of(number), pages[number])
                page = spill.page(key_of(number), LAYERS[1])
                if page is not None:
                    assert page.v.tobytes() == pages[number][1][1].v.tobytes()
                spill.release([key_of(number)])
            for number in range(3):
                spill.offer(key_of(number), pages[number])
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=conversation, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    until(lambda: [spill.written(key_of(number)) for number in range(6)] == [True] * 3 + [False] * 3)
    until(lambda: len(list(spill.folder.iterdir())) == 4)  # three pages and the lock
    for number in range(3):
        for layer, page in pages[number]:
            assert spill.page(key_of(number), layer).k.tobytes() == page.k.tobytes()
    for _ in threads:
        spill.release([key_of(number) for number in range(3)])
    assert (spill.bytes_used, spill.pages) == (0, 0)


def test_close_removes_everything_and_refuses_what_comes_after(
    opened: Open, disk: Disk, folder: Path
) -> None:
    engine = NumpyEngine()
    spill = opened()
    spill.offer(key_of(0), full_page(engine))
    until(lambda: spill.written(key_of(0)))
    disk.open.clear()
    spill.offer(key_of(1), full_page(engine, seed=1))
    threading.Timer(0.1, disk.open.set).start()  # closed under a page that is being written
    spill.close()
    assert list(folder.iterdir()) == []
    assert spill.page(key_of(0), LAYERS[0]) is None
    spill.offer(key_of(2), full_page(engine, seed=2))
    assert spill.refused(key_of(2))
    spill.release([key_of(number) for number in range(3)])
    assert spill.bytes_used == 0
    spill.close()


OTHER_PROCESS = """
import sys, time
from pathlib import Path
from tests import test_spill as t
engine = t.NumpyEngine()
spill = t.Spill(Path(sys.argv[1]), t.CAP_BYTES, engine, t.GEOMETRY, t.LAYERS)
spill.offer(t.KEY, t.full_page(engine))
t.until(lambda: spill.written(t.KEY))
print(spill.folder, flush=True)
time.sleep(120)
"""


def test_a_start_sweeps_what_a_killed_process_left_and_nothing_of_a_living_one(
    opened: Open, folder: Path
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, str(folder)],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    folders = []
    try:
        for process in processes:
            assert process.stdout
            folders.append(Path(process.stdout.readline().strip()))
            assert folders[-1].parent == folder, "the process did not start"
        killed, living = processes
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert len(list(folders[0].glob("*.page"))) == 1
        stranger = folder / "notes"
        stranger.mkdir()
        spill = opened()
        assert sorted(folder.iterdir()) == sorted([folders[1], stranger, spill.folder])
        assert len(list(folders[1].glob("*.page"))) == 1
        assert living.poll() is None
        stranger.rmdir()
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
            if process.stdout:
                process.stdout.close()
    spill.close()
    opened()  # sweeps the second one's


def test_two_spills_of_one_process_share_a_folder(opened: Open) -> None:
    first, second = opened(), opened()
    assert first.folder != second.folder
    assert first.folder.exists()


def test_a_folder_that_cannot_be_used_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="spill folder"):
        Spill(tmp_path / "file", CAP_BYTES, NumpyEngine(), GEOMETRY, LAYERS)


def test_a_file_that_cannot_be_opened_just_now_is_not_given_up(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spill = opened()
    spill.offer(KEY, full_page(NumpyEngine()))
    until(lambda: spill.written(KEY))

    def fails(_fd: int) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(spill_file, "_map", fails)
        assert spill.page(KEY, LAYERS[0]) is None
    assert os.strerror(errno.EMFILE) in caplog.text
    assert spill.page(KEY, LAYERS[0]) is not None
