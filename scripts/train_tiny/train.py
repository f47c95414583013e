"""Trains `tiny` from nothing on generated conversations; a run can be stopped and resumed at any checkpoint.

Each core has a process with rows of its own, and the gradients are averaged at every step: threads that share one
step wait for each other at thousands of places, which made the same step a third longer on two idle cores, and
twenty times as long beside other work.
"""

import argparse
import ctypes
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from .batches import Batch, Batches
from .model import Config, Tiny
from .optimizer import COURSES, Optimizer, course, rate
from .tokenizer import letter_pieces, train_tokenizer

STEPS = COURSES[-1][0]
TOKENIZER, CHECKPOINT = "tokenizer.json", "checkpoint.pt"
CHECKPOINT_EVERY_S = 300
LOG_EVERY_STEPS = 20
# What the model reads is learnt a little too, early on. It can't be foretold, so its loss stays near 3 while that of
# the answers falls below 0.05: at an equal weight its noise would be most of the late gradient.
CONTEXT_WEIGHT, CONTEXT_UNTIL = 0.1, 0.5
# Answers are mostly copies that are soon certain; what decides them are single tokens: the first of an answer, of a
# name, of a value. Each token weighs what it still lacks of certainty (focal loss, Lin et al. 2017, gamma 1).
SURE_WEIGHT = 0.05
CLIP = 1.0


def keep_freed_memory() -> None:
    """glibc gives blocks of megabytes back to the kernel and faults them in again at every step; this stops it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        trim_threshold, mmap_max = -1, -4
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


def context_weight(step: int, steps: int) -> float:
    now = course(step, steps)
    return CONTEXT_WEIGHT * max(0.05, 1 - step / (now.stop * CONTEXT_UNTIL) if now.index == 0 else 0.0)


def losses(model: Tiny, batch: Batch, context: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The loss, the answers' mean cross entropy, and how many answer tokens are right."""
    hidden = model(batch.tokens[:, :-1].contiguous(), batch.positions)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    # Only rows that are learnt meet the vocabulary.
    targets = batch.tokens[:, 1:].reshape(-1)
    chosen = torch.cat((batch.answers, batch.context))
    each = functional.cross_entropy(logits := model.logits(hidden[chosen]), targets[chosen], reduction="none")
    n = len(batch.answers)
    answers = each[:n]
    weights = 1 - torch.exp(-answers.detach()) + SURE_WEIGHT
    weighed = (weights * answers).sum() / (weights.sum() + 1)  # a long row of filler may hold no answer
    right = (logits[:n].argmax(-1) == targets[batch.answers]).float().sum().item() / max(1, n)
    return weighed + context * each[n:].mean(), answers.detach().sum() / max(1, n), right


def weights_of(model: Tiny) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def average(model: Tiny, began: dict[str, torch.Tensor]) -> None:
    """The model takes the mean of its weights and those that its course began with."""
    model.load_state_dict({name: (value + began[name]) / 2 for name, value in model.state_dict().items()})


def save(path: Path, **state: object) -> None:
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def fast_dtype() -> str:
    """bf16 where the CPU multiplies it (a step is a third shorter there); where it is emulated it halves the speed."""
    cpu = Path("/proc/cpuinfo")
    return "bf16" if cpu.exists() and "avx512_bf16" in cpu.read_text() else "fp32"


def share_gradients(parameters: list[torch.nn.Parameter], ranks: int) -> None:
    """Each process takes the mean of all processes' gradients."""
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    torch.distributed.all_reduce(flat)
    flat /= ranks
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(g.view_as(p))


def config_of(args: argparse.Namespace, tokenizer: Tokenizer) -> Config:
    return Config(vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=args.layers)


def goes_on(checkpoint: Path, args: argparse.Namespace) -> bool:
    """Whether a checkpoint is one of the run that the flags describe."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=False)
    config = config_of(args, Tokenizer.from_file(str(args.run / TOKENIZER)))
    return (state["steps"], state["seed"], state["config"]) == (args.steps, args.seed, asdict(config))


def train(rank: int, args: argparse.Namespace, meeting: str) -> None:
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    ranks = args.processes
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks
        )
    tokenizer = Tokenizer.from_file(str(args.run / TOKENIZER))
    checkpoint = args.run / CHECKPOINT
    config = config_of(args, tokenizer)
    model = Tiny(config, torch.Generator().manual_seed(args.seed), compiled=args.compile)
    model.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[args.dtype]
    optimizer = Optimizer(dict(model.p.items()), model.dtype, rank, ranks)
    first, before, began = args.at_step, 0.0, None
    if args.weights:
        model.take(load_file(args.weights / "model.safetensors"))
    if args.resume and checkpoint.exists():
        state = torch.load(checkpoint, map_location="cpu", weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.restore(state["optimizer"])
        first, before, began = state["step"], state["seconds"], state["began"]
    batches = Batches(tokenizer, letter_pieces(tokenizer), args.seed, args.steps)
    last = min(args.steps, args.stop_after or args.steps)
    log = (args.run / "log.txt").open("a", buffering=1) if rank == 0 else None
    started = saved = since = time.monotonic()
    sums, counted, read = [0.0, 0.0], 0, 0
    for step in range(first, last):
        now = course(step, args.steps)
        if now.averaged and step == now.start:
            began = weights_of(model)
        batch = batches.at(step, rank, ranks)
        loss, answers, right = losses(model, batch, context_weight(step, args.steps))
        for p in model.p.values():
            p.grad = None
        loss.backward()
        if ranks > 1:
            share_gradients(list(model.p.values()), ranks)
        torch.nn.utils.clip_grad_norm_(model.p.values(), CLIP)
        optimizer.step(step, args.steps)
        if began and step + 1 == now.stop:
            average(model, began)
            began = None
        if log is None:
            continue
        sums[0] += answers.item()
        sums[1] += right
        counted += 1
        read += batch.positions.numel() * ranks
        clock = time.monotonic()
        if (step + 1) % LOG_EVERY_STEPS == 0 or step + 1 == last:
            spent = clock - since
            left_min = (last - step - 1) * spent / counted / 60
            log.write(
                f"{step + 1}/{args.steps} T={batch.positions.shape[1]} loss {sums[0] / counted:.3f} "
                f"right {sums[1] / counted:.4f} rate {rate(step, args.steps):.2f} "
                f"{read / spent:.0f} tok/s eta {left_min:.0f} min\n"
            )
            since, sums, counted, read = clock, [0.0, 0.0], 0, 0
        if clock - saved > CHECKPOINT_EVERY_S or step + 1 == last:
            save(
                checkpoint,
                model=model.state_dict(),
                began=began,
                optimizer=optimizer.state(),
                step=step + 1,
                steps=args.steps,
                seed=args.seed,
                seconds=before + clock - started,
                config=asdict(config),
            )
            saved = clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of tokenizer, checkpoint and log")
    parser.add_argument("--steps", type=int, default=STEPS, help="length of the whole schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="each with its own rows of a step")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default=fast_dtype(), help="of matrix products")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=bool(shutil.which("clang++" if sys.platform == "darwin" else "g++")),
        help="with torch.compile, which needs a C++ compiler: two minutes at the start, then shorter steps",
    )
    parser.add_argument("--layers", type=int, default=Config.num_hidden_layers)
    parser.add_argument(
        "--stop-after", type=int, help="stop with a checkpoint after this step of the schedule"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint if there is one")
    parser.add_argument(
        "--weights", type=Path, help="begin with the weights and the tokenizer of an exported folder"
    )
    parser.add_argument("--at-step", type=int, default=0, help="the step of the schedule to begin with")
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    tokenizer_file = args.run / TOKENIZER
    if args.weights and not tokenizer_file.exists():
        shutil.copyfile(args.weights / TOKENIZER, tokenizer_file)
    if not tokenizer_file.exists():
        train_tokenizer(args.seed).save(str(tokenizer_file))
    checkpoint = args.run / CHECKPOINT
    if args.resume and checkpoint.exists() and not goes_on(checkpoint, args):
        parser.error(f"{checkpoint} belongs to another schedule, seed or shape: give the flags it began with")
    if args.processes == 1:
        train(0, args, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (args, f"{folder}/meeting"), nprocs=args.processes)


if __name__ == "__main__":
    main()
