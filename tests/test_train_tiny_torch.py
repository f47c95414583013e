"""The trainer itself, where PyTorch is installed (`pip install '.[train]'`): stops, resumes, shares steps."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[train]'")

from scripts.train_tiny.model import Config, Tiny  # noqa: E402
from scripts.train_tiny.optimizer import COURSES, Optimizer, course, rate  # noqa: E402

ROOT = Path(__file__).parent.parent


def run(folder: Path, *flags: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "scripts.train_tiny.train",
        str(folder),
        "--layers",
        "4",
        "--steps",
        "131",
        "--no-compile",
    ]
    subprocess.run([*command, *flags], cwd=ROOT, check=True, timeout=600, capture_output=True, text=True)
    return torch.load(folder / "checkpoint.pt", map_location="cpu", weights_only=False)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    # Both processes take part: what differed between them would show after their next shared gradient.
    straight = run(tmp_path / "a", "--stop-after", "4")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").write_bytes((tmp_path / "a" / "tokenizer.json").read_bytes())
    run(tmp_path / "b", "--stop-after", "2")
    resumed = run(tmp_path / "b", "--stop-after", "4", "--resume")
    assert resumed["step"] == straight["step"] == 4
    for name, value in straight["model"].items():
        assert torch.equal(value, resumed["model"][name]), name


def test_a_checkpoint_of_another_seed_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path, "--stop-after", "1")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(tmp_path, "--stop-after", "2", "--resume", "--seed", "1")
    last = refused.value.stderr.splitlines()[-1]
    assert "checkpoint.pt belongs to another schedule, seed or shape" in last


def test_shared_updates_are_those_of_one_process(tmp_path: Path) -> None:
    # Matrices are dealt out among the processes; each has to end with all of the updates.
    context = torch.multiprocessing.get_context("spawn")
    both = [context.Process(target=_one_step, args=(tmp_path, rank, 2)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    _one_step(tmp_path, 0, 1)
    alone = torch.load(tmp_path / "0-of-1.pt")
    for rank in (0, 1):
        shared = torch.load(tmp_path / f"{rank}-of-2.pt")
        for name, value in alone.items():
            assert torch.allclose(value, shared[name], rtol=0, atol=1e-6), name


def _one_step(folder: Path, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks
        )
    numbers = torch.Generator().manual_seed(3)
    model = Tiny(Config(num_hidden_layers=4), numbers)
    for p in model.p.values():
        p.grad = torch.randn(p.shape, generator=numbers)
    Optimizer(dict(model.p.items()), rank=rank, ranks=ranks).step(0, 131)
    torch.save(model.state_dict(), folder / f"{rank}-of-{ranks}.pt")


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++")
def test_compiled_layers_have_the_gradients_of_plain_ones() -> None:
    tokens = torch.randint(0, 3072, (2, 64), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(64).expand(2, 64) * 3
    gradients = []
    for compiled in (False, True):
        model = Tiny(Config(num_hidden_layers=4), torch.Generator().manual_seed(0), compiled)
        model.logits(model(tokens, positions)).logsumexp(-1).sum().backward()
        gradients.append({name: p.grad for name, p in model.p.items()})
    for name, plain in gradients[0].items():
        assert (gradients[1][name] - plain).norm() <= 1e-4 * plain.norm(), name


def test_rows_do_not_read_each_other() -> None:
    # All rows' tokens stand in one line inside the model: taps, states and attention have to stop where a row begins.
    model = Tiny(Config(num_hidden_layers=4), torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 3072, (3, 96), generator=torch.Generator().manual_seed(1))
    together = model(tokens)
    for row, alone in zip(together, tokens, strict=True):
        assert torch.allclose(row, model(alone[None])[0], rtol=0, atol=1e-4)


def test_courses_begin_warm_and_end_cold() -> None:
    steps = COURSES[-1][0]
    start = 0
    for index, (stop, top, _) in enumerate(COURSES):
        assert course(start, steps).index == course(stop - 1, steps).index == index
        assert rate(start, steps) < 0.1 * top
        assert rate(stop - 1, steps) < 0.01 * top
        assert max(rate(step, steps) for step in range(start, stop)) > 0.9 * top
        start = stop
