"""Pulls the plug in every way and at every moment, and checks that the reply is the one of a host alone.

    python benchmarks/survive.py --json

The embedded model, a prompt of 1,400 tokens split at layers 4 and 2, pages of 64 tokens past a window of 128, and a
spill. The worker is a process where a signal is what happens to it. A cell passes if the fault really came to pass, the
greedy tokens are those of a host alone, no error was seen, and a worker that is still there (or there again) came back
by itself and served the next request. `lost` counts replies with other tokens or none, `identical` those whose logits
had the same bits, too. `worst_notice_*` is the longest from the fault until the host knew, by the end of the stream or
by a deadline.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import fair_environment, finish

ROOT = Path(__file__).parent.parent


def run(faults: list[str] | None, moments: list[str] | None, timeout_s: float) -> dict[str, Any]:
    # Not above: MLX needs its environment first, and the parts of the tests are not on everybody's path.
    sys.path.insert(0, str(ROOT))
    from tests import survival

    survival.answer()
    found = []
    for fault, moment, seam in survival.cells():
        if fault not in (faults or [fault]) or moment not in (moments or [moment]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            cell = survival.run_cell(fault, moment, seam, Path(folder), timeout_s, processes=True)
        found.append(cell)
        notice = "-" if cell.notice_s is None else f"{cell.notice_s:.3f} s"
        outcome = "ok" if cell.passed else f"FAILED: {cell.row()}"
        print(
            f"{fault:>22} | {moment:<15} | seam {seam} | noticed {notice:>9}, {cell.seconds:4.1f} s: {outcome}",
            file=sys.stderr,
        )
    return survival.summary(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--fault", action="append", help="only this one; may be repeated")
    parser.add_argument("--moment", action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--timeout", type=float, default=10.0, help="of the link, in seconds (the server's: 10)"
    )
    options = parser.parse_args()
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    fair_environment()
    begun = time.monotonic()
    result = run(options.fault, options.moment, options.timeout)
    rows = result.pop("rows")
    finish(result | {"seconds": round(time.monotonic() - begun, 1), "rows": rows}, options.json)
    return 0 if 0 < result["cells"] == result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
