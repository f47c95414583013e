"""A worker that bakes pages: what is served from them, what is kept, and what happens when something breaks."""

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backburner.attention import baked
from backburner.attention.baked import BakedEngine, BakedRun
from backburner.attention.engine import Geometry
from backburner.attention.numpy_engine import NumpyEngine
from backburner.coreml.interpreter import Rounding
from backburner.coreml.runtime import SimulatedRuntime
from backburner.disk import OPEN_FILES, allow_open_files
from backburner.errors import ConfigError, OutOfBudget, UnknownPage
from backburner.worker.bake_folder import BakeFolder
from backburner.worker.bake_share import SHARES, Share, read_share, write_share
from backburner.worker.baker import BakeSettings
from backburner.worker.bakery import Bakery
from backburner.worker.store import PageStore
from tests.coreml_support import needs_coremltools

pytestmark = needs_coremltools

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim=64, page_tokens=64, dtype="float32", scale=0.125)
BAKED_TOKENS = 128
LAYERS = (3, 7)
ALL = Share(1.0, 1.0)
# A busy machine: the template is made by another process.
PATIENCE_S = 240.0


def keys(*names: str) -> list[bytes]:
    return [name.encode() * 16 for name in names]


def rows(key: bytes, layer: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([key[0], layer])
    return tuple(generator.standard_normal((2, 2, 64, 64), np.float32))  # type: ignore[return-value]


def until(condition, timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bake folder whose template is made once, for all tests."""
    folder = tmp_path_factory.mktemp("kitchen")
    with baking(folder) as made:
        made.put("a", "b")
        made.until_baked(2)
    return folder


class Made:
    """A store, a bakery, and pages in it, without a link."""

    def __init__(self, settings: BakeSettings, memory_bytes: int) -> None:
        self.engine = BakedEngine(NumpyEngine(), "baked-sim")
        self.store = PageStore(self.engine, memory_bytes)
        self.bakery = Bakery(self.store, self.engine, settings)
        self.bakery.greet(GEOMETRY, LAYERS)

    def put(self, *names: str, sequence: int = 1) -> None:
        for key in keys(*names):
            for layer in LAYERS:
                self.store.put(key, layer, 0, *rows(key, layer), GEOMETRY)
        self.store.bind(sequence, keys(*names), LAYERS, GEOMETRY)
        self.bakery.wake()

    def until_baked(self, pages: int) -> None:
        until(lambda: self.bakery.state().pages == pages or self.bakery.state().error)
        assert self.bakery.state().pages == pages, self.bakery.state()

    def arranged(self, layer: int = 3, tokens: int = 1, sequence: int = 1) -> list:
        names = self.store.bound_keys(sequence)
        pages = self.store.bound_pages(sequence, layer, 0, len(names), GEOMETRY)
        return self.bakery.arrange(GEOMETRY, layer, names, 0, pages, tokens)

    def runs(self, **options) -> int:
        return sum(isinstance(page, BakedRun) for page in self.arranged(**options))

    def error_against_ordinary(self, tokens: int = 1, sequence: int = 1) -> float:
        q = np.random.default_rng(tokens).standard_normal((4, tokens, 64), np.float32)
        pages = self.store.bound_pages(sequence, 3, 0, len(self.store.bound_keys(sequence)), GEOMETRY)
        exact = self.engine.fold(self.engine.attend(GEOMETRY, q, pages))
        found = self.engine.fold(
            self.engine.attend(GEOMETRY, q, self.arranged(tokens=tokens, sequence=sequence))
        )
        assert np.abs(found.lse - exact.lse).max() < 5e-3
        return float(np.linalg.norm(found.o - exact.o) / np.linalg.norm(exact.o))


@contextlib.contextmanager
def baking(
    folder: Path | None, memory_bytes: int = 2**24, share: Share = ALL, runtime=None, **options
) -> Iterator[Made]:
    settings = BakeSettings(
        runtime or SimulatedRuntime(),
        share,
        BAKED_TOKENS,
        folder=folder,
        **({"pause_s": 0.05, "folder_bytes": 2**30} | options),
    )
    made = Made(settings, memory_bytes)
    try:
        yield made
    finally:
        made.bakery.close(PATIENCE_S)


def forget_pages(folder: Path) -> None:
    """Leaves the template, so that no test makes another."""
    shutil.rmtree(folder / "pages", ignore_errors=True)


def test_baked_pages_answer_as_the_ordinary_engine_does(kitchen: Path) -> None:
    forget_pages(kitchen)
    with baking(kitchen) as made:
        made.put("a", "b", "c", "d", "e")
        made.until_baked(4)
        assert [isinstance(page, BakedRun) for page in made.arranged()] == [True, True, False]
        for tokens in (1, 8, 32):
            assert made.error_against_ordinary(tokens) < 3e-3
        assert made.runs(tokens=33) == 0, "longer queries are the ordinary engine's"
        state = made.bakery.state()
        assert (state.refused, state.error, state.baking) == (0, "", 0)
        assert state.bytes == made.store.used_bytes - 10 * made.engine.page_bytes(GEOMETRY)
        assert 0 < state.share < 1


def test_the_share_is_in_whole_pages_of_what_is_oldest(kitchen: Path) -> None:
    with baking(kitchen, share=Share(0.5, 1.0)) as made:
        made.put("a", "b", "c", "d")
        made.until_baked(4)
        assert [isinstance(page, BakedRun) for page in made.arranged()] == [True, False, False]
        assert made.runs(tokens=2) == 2


def test_pages_are_found_again_after_a_restart(kitchen: Path) -> None:
    forget_pages(kitchen)
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
        assert made.bakery.state().reused == 0
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
        assert made.bakery.state().reused == 2
        assert made.error_against_ordinary() < 3e-3


@pytest.mark.parametrize("what", ["weight.bin", "page.json", "exponent", "short"])
def test_a_damaged_page_on_disk_is_baked_again(kitchen: Path, what: str) -> None:
    forget_pages(kitchen)
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
    for folder in (kitchen / "pages").iterdir():
        weights = next(folder.rglob("weight.bin"))
        page = folder / "page.json"
        if what == "weight.bin":
            data = bytearray(weights.read_bytes())
            data[len(data) // 2] ^= 64
            weights.write_bytes(data)
        elif what == "short":
            weights.write_bytes(weights.read_bytes()[:-1])
        elif what == "page.json":
            page.write_text("{")
        else:
            page.write_text(page.read_text().replace('"exponents": [[', '"exponents": [[9', 1))
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
        assert made.bakery.state().reused == 0
        assert made.error_against_ordinary() < 3e-3


def test_what_a_killed_bake_left_is_no_page_and_is_removed(kitchen: Path) -> None:
    forget_pages(kitchen)
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
    left = sorted((kitchen / "pages").iterdir())
    (left[0] / "page.json").unlink()  # it is written last
    unlocked = kitchen / "pages" / "new-0123456789abcdef"
    unlocked.mkdir()
    with baking(kitchen) as made:
        assert not left[0].exists()
        assert not unlocked.exists()
        made.put("a", "b")
        made.until_baked(2)
        assert made.bakery.state().reused == 1


def test_a_page_that_another_worker_bakes_is_left_alone_whatever_its_pid(kitchen: Path) -> None:
    """Workers in two containers may both be process 1. A lock tells them apart."""
    forget_pages(kitchen)
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
    left = sorted((kitchen / "pages").iterdir())
    (left[0] / "page.json").unlink()
    with (left[0] / "owner").open("r+") as owner:
        owner.write(str(os.getpid()))
        fcntl.flock(owner, fcntl.LOCK_EX)
        with baking(kitchen) as made:
            assert left[0].exists()
            made.put("a", "b")
            until(lambda: made.bakery.state().pages == 2)
            assert "not kept on disk" in made.bakery.state().error
            assert (left[0] / "page.mlpackage").exists()


def test_a_bake_folder_that_has_other_things_keeps_them(kitchen: Path, tmp_path: Path) -> None:
    shutil.copytree(kitchen / "templates", tmp_path / "templates")
    others = [tmp_path / "pages" / "blog" / "index.md", tmp_path / "pages" / "new-posts" / "first.md"]
    for file in others:
        file.parent.mkdir(parents=True)
        file.write_text("mine")
    with baking(tmp_path, folder_bytes=2**17) as made:  # one page: the first gives way to the second
        made.put("a", "b")
        made.until_baked(2)
    assert [file.read_text() for file in others] == ["mine", "mine"]


def test_a_bake_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/here cannot hold baked pages"):
        BakeFolder(tmp_path / "file" / "here", 2**20)


def test_a_rewound_sequence_is_not_served_from_its_old_pages(kitchen: Path) -> None:
    with baking(kitchen) as made:
        made.put("a", "b")
        made.until_baked(2)
        made.bakery.close(PATIENCE_S)  # nothing new is baked
        made.put("a", "x")
        assert made.runs() == 0
        made.put("b", "a")
        assert made.runs() == 0, "the order counts, too"
        made.put("a", "b")
        assert made.runs() == 1


def test_a_page_that_fails_its_self_test_stays_with_the_ordinary_engine(kitchen: Path) -> None:
    forget_pages(kitchen)
    with baking(kitchen, o_rel_max=1e-9) as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().refused == 2)
        until(lambda: made.bakery.state().bytes == 0)
        state = made.bakery.state()
        assert state.pages == 0
        assert "self-test failed" in state.error
        assert made.runs() == 0
        assert list((kitchen / "pages").iterdir()) == []


def test_an_engine_whose_exp_is_off_is_trusted_with_nothing(kitchen: Path) -> None:
    with baking(kitchen, runtime=SimulatedRuntime(Rounding(exp_error=0.2))) as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().refused or made.bakery.state().pages)
        assert "cannot be trusted" in made.bakery.state().error
        assert made.bakery.state().pages == 0


def test_int8_refuses_itself_by_the_default_tolerance(kitchen: Path) -> None:
    with baking(kitchen, weights="int8") as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().refused == 2)
        assert "self-test failed" in made.bakery.state().error


def fill(store: PageStore) -> None:
    """Binds pages until no more fits."""
    for name in "defgh":
        store.put(keys(name)[0], 3, 0, *rows(b"d", 3), GEOMETRY)
        store.bind(ord(name), keys(name), (3,), GEOMETRY)


class Failing(SimulatedRuntime):
    """Loads, and then does what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.on_load = lambda loads: None
        self.broken = False
        self.go_on = threading.Event()  # calls hang while it is not set
        self.go_on.set()
        self.called = threading.Event()
        self.loads = 0

    def load(self, manifest, image, folder):
        self.loads += 1
        self.on_load(self.loads)
        predict = super().load(manifest, image, folder)

        def call(inputs):
            self.called.set()
            assert self.go_on.wait(PATIENCE_S)
            if self.broken:
                raise RuntimeError("the Neural Engine is gone")
            return predict(inputs)

        return call


def test_a_page_that_fails_in_use_is_answered_from_its_rows(kitchen: Path) -> None:
    runtime = Failing()
    with baking(kitchen, runtime=runtime) as made:
        made.put("a", "b")
        made.until_baked(2)
        runtime.broken = True
        assert made.error_against_ordinary() == 0.0
        assert made.runs() == 0
        made.bakery.wake()
        until(lambda: made.bakery.state().refused == 1)
        assert "Neural Engine is gone" in made.bakery.state().error


def test_a_page_that_hangs_is_answered_from_its_rows(kitchen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baked, "FIRST_DEADLINE_S", 0.2)
    monkeypatch.setattr(baked, "FLOOR_S", 0.2)
    runtime, wait = Failing(), baked._Beside.wait

    def wait_once_begun(*arguments):
        assert runtime.called.wait(PATIENCE_S)  # a busy machine may start the thread after the deadline
        return wait(*arguments)

    monkeypatch.setattr(baked._Beside, "wait", wait_once_begun)
    with baking(kitchen, runtime=runtime) as made:
        made.put("a", "b", "c", "d", "e", "f")
        made.until_baked(6)
        runtime.called.clear()
        runtime.go_on.clear()
        assert made.error_against_ordinary() < 1e-6
        assert made.runs() == 2, "nothing is known against those behind it"
        assert {thread.daemon for thread in threading.enumerate() if thread.name == "baked"} == {True}
        monkeypatch.setattr(baked, "FIRST_DEADLINE_S", PATIENCE_S)
        monkeypatch.setattr(baked, "FLOOR_S", PATIENCE_S)
        assert made.error_against_ordinary() < 1e-6, "nothing is asked behind a call that hangs"
        runtime.go_on.set()
        until(lambda: made.error_against_ordinary() > 1e-5)
        made.bakery.wake()
        until(lambda: made.bakery.state().refused == 1)
        assert "TimeoutError" in made.bakery.state().error


@pytest.mark.parametrize(
    ("why", "said"), [(MemoryError(), "too little memory"), (OSError(28, "No space left"), "No space left")]
)
def test_what_may_pass_while_baking_is_tried_again_and_serving_goes_on(
    kitchen: Path, why: Exception, said: str
) -> None:
    forget_pages(kitchen)
    runtime = Failing()

    def fail_twice(loads: int) -> None:
        if loads in (2, 3):  # the first is the template's own test
            raise why

    runtime.on_load = fail_twice
    with baking(kitchen, runtime=runtime) as made:
        made.put("a", "b")
        until(lambda: said in made.bakery.state().error)
        assert made.error_against_ordinary() < 3e-3
        until(lambda: made.bakery.state().pages == 2)
        assert made.bakery.state().refused == 0


def test_baked_pages_are_given_up_before_any_row_is(kitchen: Path) -> None:
    page = NumpyEngine().page_bytes(GEOMETRY)
    with baking(kitchen, memory_bytes=2**20) as made:
        made.put("a", "b")
        made.until_baked(2)
        baked = made.bakery.state().bytes
        names = iter("cdefghijklmnop")
        while made.store.used_bytes + page <= made.store.memory_bytes:
            made.store.put(keys(next(names))[0], 3, 0, *rows(b"c", 3), GEOMETRY)
        count = len(made.store)
        made.store.put(keys(next(names))[0], 3, 0, *rows(b"c", 3), GEOMETRY)
        assert len(made.store) == count + 1, "no page gave way"
        assert made.bakery.state().bytes < baked
        assert made.bakery.state().shed >= 1


def test_the_page_that_is_being_baked_gives_way_to_rows(kitchen: Path) -> None:
    forget_pages(kitchen)
    runtime, held = Failing(), threading.Event()
    begun = threading.Event()

    def wait(loads: int) -> None:
        if loads == 2:
            begun.set()
            held.wait(PATIENCE_S)

    runtime.on_load = wait
    page = NumpyEngine().page_bytes(GEOMETRY)
    with baking(kitchen, memory_bytes=7 * page, runtime=runtime) as made:
        made.put("a", "b")
        assert begun.wait(PATIENCE_S)
        assert made.bakery.state().baking == 1
        made.store.put(keys("c")[0], 3, 0, *rows(b"c", 3), GEOMETRY)
        made.store.put(keys("c")[0], 7, 0, *rows(b"c", 7), GEOMETRY)
        made.store.bind(2, keys("c"), LAYERS, GEOMETRY)
        assert made.bakery.state().bytes == 0
        with pytest.raises(OutOfBudget):
            fill(made.store)
        held.set()
        until(lambda: not made.bakery.state().baking)
        assert made.store.used_bytes == 7 * page
        assert made.bakery.state().pages == 0


def test_a_full_disk_costs_only_the_next_start(kitchen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_pages(kitchen)

    def full(*arguments) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("backburner.worker.bake_folder.write_package", full)
    with baking(kitchen) as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().pages == 2)
        assert "No space left" in made.bakery.state().error
        assert list((kitchen / "pages").iterdir()) == []


def full_disk(*arguments) -> None:
    raise OSError(28, "No space left on device")


def test_a_proven_page_that_cannot_be_kept_is_served(kitchen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_pages(kitchen)
    monkeypatch.setattr("backburner.worker.bake_folder.UnprovenPage.keep", full_disk)
    with baking(kitchen) as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().pages == 2)
        assert "No space left" in made.bakery.state().error
        assert made.bakery.state().refused == 0
        assert list((kitchen / "pages").iterdir()) == []
        assert made.error_against_ordinary() < 3e-3


class Packaged(SimulatedRuntime):
    """As Core ML: it loads files, and what it has made of them may be broken. damage: by the number of the load."""

    needs_package = True

    def __init__(self, build: str = "1", damage: dict[int, str] | None = None) -> None:
        super().__init__()
        self.build = build
        self.damage = damage or {}
        self.loads = 0

    def load(self, manifest, image, folder):
        assert (folder / "page.mlpackage").is_dir()
        self.loads += 1
        damage = self.damage.get(self.loads)
        if damage == "load":
            raise RuntimeError("it cannot be loaded")
        predict = super().load(manifest, image, folder)
        if damage == "answer":
            return lambda inputs: {name: output * 2 for name, output in predict(inputs).items()}
        return predict


@pytest.mark.parametrize("damage", ["load", "answer"])
def test_a_compiled_page_that_is_broken_is_baked_again(kitchen: Path, damage: str) -> None:
    forget_pages(kitchen)
    with baking(kitchen, runtime=Packaged()) as made:
        made.put("a", "b")
        made.until_baked(2)
    with baking(
        kitchen, runtime=Packaged(damage={2: damage})
    ) as made:  # the first is the template's own test
        made.put("a", "b")
        made.until_baked(2)
        assert (made.bakery.state().refused, made.bakery.state().reused) == (0, 1)
        assert made.error_against_ordinary() < 3e-3
    with baking(kitchen, runtime=Packaged()) as made:
        made.put("a", "b")
        made.until_baked(2)
        assert made.bakery.state().reused == 2
    with baking(kitchen, runtime=Packaged("2")) as made:
        made.put("a", "b")
        made.until_baked(2)
        assert made.bakery.state().reused == 0, "another system compiles otherwise"


def test_a_page_that_needs_its_files_is_baked_when_there_is_space(
    kitchen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pages(kitchen)
    with monkeypatch.context() as patched:
        patched.setattr("backburner.worker.bake_folder.UnprovenPage.keep", full_disk)
        with baking(kitchen, runtime=Packaged()) as made:
            made.put("a", "b")
            until(lambda: "No space left" in made.bakery.state().error)
            patched.undo()
            until(lambda: made.bakery.state().pages == 2)
            assert made.bakery.state().refused == 0


def test_a_damaged_template_is_made_again_and_what_makers_left_is_swept(
    kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (template,) = (folder for folder in (kitchen / "templates").iterdir() if shape_of(folder) == "float16")
    shutil.copytree(template, tmp_path / "templates" / template.name)
    (tmp_path / "templates" / template.name / "manifest.json").write_text("")  # a power cut
    left, young, other = (
        tmp_path / "templates" / name
        for name in (f".{template.name}-12ab", f".{template.name}-34cd", ".other-12ab")
    )
    for folder in (left, young, other):
        folder.mkdir()
    for folder in (left, other):
        os.utime(folder, (0, 0))
    made_by = []

    def copy(shape, folder: Path) -> None:
        made_by.append(folder)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)

    monkeypatch.setattr("backburner.worker.bake_template._make", copy)
    with baking(tmp_path) as made:
        made.put("a", "b")
        made.until_baked(2)
    assert len(made_by) == 1
    assert [folder.exists() for folder in (left, young, other)] == [False, True, True]


def shape_of(template: Path) -> str:
    return json.loads((template / "manifest.json").read_text())["shape"]["weights"]


def test_what_hinders_a_template_may_pass(
    kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (template,) = (folder for folder in (kitchen / "templates").iterdir() if shape_of(folder) == "float16")
    tries = []

    def copy(shape, folder: Path) -> None:
        tries.append(folder)
        if len(tries) == 1:
            full_disk()
        shutil.copytree(template, folder)

    monkeypatch.setattr("backburner.worker.bake_template._make", copy)
    monkeypatch.setattr("backburner.worker.baker.PROGRAM_PAUSES", 1)
    with baking(tmp_path) as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().pages == 2)
        assert made.bakery.state().refused == 0
    assert len(tries) == 2


def test_refusals_of_wanted_pages_are_never_forgotten(kitchen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be tried again at once, and refused, without end."""
    forget_pages(kitchen)
    monkeypatch.setattr("backburner.worker.baker.REFUSALS_MAX", 1)
    with baking(kitchen, o_rel_max=1e-9) as made:
        made.put("a", "b")
        until(lambda: made.bakery.state().refused == 2)
        made.store.release_all()
        made.put("c", "d")
        until(lambda: {name.keys for name in made.bakery._baker.refused} == {tuple(keys("c", "d"))})


def test_a_worker_may_open_a_file_for_each_page() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_open_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert hard == before[1]
    assert soft == (OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard))


def test_a_host_whose_pages_make_no_run_is_served_by_the_ordinary_engine(kitchen: Path) -> None:
    with baking(kitchen) as made:
        made.bakery.greet(replace(GEOMETRY, page_tokens=48), LAYERS)
        assert "not a multiple" in made.bakery.state().error
        made.put("a", "b")
        assert made.runs() == 0


def test_a_host_whose_pages_make_no_run_comes_while_another_ones_are_baked(kitchen: Path) -> None:
    forget_pages(kitchen)
    runtime, begun, held = Failing(), threading.Event(), threading.Event()

    def wait(loads: int) -> None:
        if loads == 2:
            begun.set()
            held.wait(PATIENCE_S)

    runtime.on_load = wait
    with baking(kitchen, runtime=runtime) as made:
        made.put("a", "b")
        assert begun.wait(PATIENCE_S)
        made.store.release_all()
        other = replace(GEOMETRY, page_tokens=48)
        made.bakery.greet(other, LAYERS)
        for key in keys("c", "d", "e"):
            for layer in LAYERS:
                made.store.put(key, layer, 0, *(x[:, :48] for x in rows(key, layer)), other)
        made.store.bind(2, keys("c", "d", "e"), LAYERS, other)
        baker, wanted = made.bakery._baker, []
        look = baker._wanted
        baker._wanted = lambda host: wanted.append(look(host)) or wanted[-1]
        held.set()
        until(lambda: wanted)
        assert wanted[0] == []


def test_a_page_that_is_gone_is_not_looked_for_again_at_once(
    kitchen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pages(kitchen)

    def gone(*arguments) -> None:
        raise UnknownPage("not here")

    with baking(kitchen, pause_s=PATIENCE_S) as made:
        monkeypatch.setattr(made.store, "pages_of", gone)
        made.put("a", "b")
        until(lambda: made.bakery._baker._pause_until)
        assert made.bakery.state().refused == 0, "it may come again"


def test_a_measured_share_is_read_where_it_is_written(tmp_path: Path) -> None:
    assert read_share(tmp_path, "baked-sim", "native") == SHARES["baked-sim"]
    write_share(tmp_path, "baked-sim", "native", Share(0.3, 0.6), {})
    assert read_share(tmp_path, "baked-sim", "native") == Share(0.3, 0.6)
    assert read_share(tmp_path, "baked", "mlx") == SHARES["baked"]


@pytest.mark.parametrize(
    ("keys", "tokens", "pages"), [(65_536, 1, 1), (81_920, 1, 1), (131_072, 1, 2), (65_536, 8, 2)]
)
def test_shares_are_rounded_to_the_nearest_page(keys: int, tokens: int, pages: int) -> None:
    assert SHARES["baked"].pages(keys, tokens, 16_384) == pages
