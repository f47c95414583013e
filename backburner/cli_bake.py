"""The commands `backburner bake template` and `backburner bake page`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from backburner.config import EMBEDDED
from backburner.errors import BakeRefused, ConfigError

app = typer.Typer(
    help="Turns old K and V into the weights of Core ML models (docs/baked-pages.md).", no_args_is_help=True
)


@app.command()
def template(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="A model folder or a Hugging Face id (OWNER/NAME), whose config is downloaded. Default: `tiny`."
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Instead of a model, the numbers of query heads, K/V heads and channels of a head: 24,4,256."
        ),
    ] = None,
    bake_tokens: Annotated[int, typer.Option(help="Positions in a baked page.")] = 16_384,
    page_tokens: Annotated[
        int | None, typer.Option("--page-tokens", hidden=True, help="The former name of --bake-tokens.")
    ] = None,
    block_tokens: Annotated[int, typer.Option(help="Positions in one convolution.")] = 4_096,
    columns: Annotated[
        int,
        typer.Option(
            help="Query columns: query heads of one kv head x tokens. Devices like multiples of 32."
        ),
    ] = 64,
    variant: Annotated[str, typer.Option(help="block, softmax or matmul.")] = "block",
    estimate: Annotated[
        bool, typer.Option(help="A channel that takes an estimated maximum off the scores.")
    ] = True,
    weights: Annotated[str, typer.Option(help="float16 or int8.")] = "float16",
    shift: Annotated[
        float,
        typer.Option(help="Weights are at most e^shift. Where small numbers are flushed to 0, try 2.75."),
    ] = 1.9375,
) -> None:
    """Writes the program of one page, without K and V: spec, manifest and self-test. Needs coremltools."""
    from backburner.coreml.package import write_template
    from backburner.coreml.shape import PageShape

    if attention is not None and model is not None:
        raise ConfigError("--attention says what --model would: give one of them.")
    q_heads, kv_heads, head_dim = (
        _attention_shape(model) if attention is None else attention_numbers(attention)
    )
    one_block = variant != "block"
    page_tokens = bake_tokens if page_tokens is None else page_tokens
    shape = PageShape(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_tokens=page_tokens,
        block_tokens=page_tokens if one_block else min(block_tokens, page_tokens),
        columns=columns,
        variant=variant,
        estimate=estimate and weights == "float16",
        weights=weights,
        shift=shift,
    )
    manifest = write_template(output, shape, head_dim**-0.5)
    written = sum(file.stat().st_size for file in output.iterdir())
    print(
        f"{output}: {len(manifest.constants)} constants, {written / 1e3:.0f} kB; "
        f"a page's weight.bin will have {manifest.file_bytes / 2**20:.1f} MiB"
    )


@app.command()
def page(
    template: Annotated[Path, typer.Option(help="A folder that `backburner bake template` wrote.")],
    kv: Annotated[
        Path,
        typer.Option(
            help="An .npz with k and v, \\[kv_heads, rows, head_dim]: float16, float32, or bfloat16 as uint16 bits."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder to write.")],
    tolerance: Annotated[float, typer.Option(help="The largest relative error of the self-test.")] = 1e-2,
    check: Annotated[bool, typer.Option(help="Run the self-test in the interpreter first.")] = True,
) -> None:
    """Writes page.mlpackage and page.json of given K and V."""
    from backburner.coreml.package import bake_page, read_template

    k, v = _read_kv(kv)
    baked = bake_page(read_template(template), k, v, output, tolerance, check)
    found = "not checked"
    if baked.errors:
        found = f"o {baked.errors.o_rel:.2e} relative, lse {baked.errors.lse_abs:.1e}"
    print(f"{output}: {baked.filled} rows; {found}")


def _attention_shape(model: str | None) -> tuple[int, int, int]:
    """Query heads, kv heads, head_dim."""
    from backburner.model.load import find_model, model_type_for, read_config, text_config

    _, folder = find_model(model or EMBEDDED, config_only=True)
    config = read_config(folder)
    model_type_for(config)
    text = text_config(config)
    try:
        q_heads = int(text["num_attention_heads"])
        kv_heads = int(text["num_key_value_heads"])
        return q_heads, kv_heads, int(text.get("head_dim") or text["hidden_size"] // q_heads)
    except (KeyError, TypeError, ValueError) as e:
        raise ConfigError(f"{folder}/config.json does not say how large its attention is: {e!r}") from None


def attention_numbers(text: str) -> tuple[int, int, int]:
    """The same from --attention."""
    try:
        q_heads, kv_heads, head_dim = (int(part) for part in text.split(","))
    except ValueError:
        q_heads = kv_heads = head_dim = 0
    if min(q_heads, kv_heads, head_dim) < 1:
        raise ConfigError(f"--attention {text!r} is not three numbers from 1 on; write for example 24,4,256.")
    return q_heads, kv_heads, head_dim


def _read_kv(path: Path) -> tuple[Any, Any]:
    import zlib
    from zipfile import BadZipFile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            k, v = arrays["k"], arrays["v"]
    # A lone .npy has no names; a zip may be cut off, or its parts damaged.
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, BadZipFile, zlib.error) as e:
        raise ConfigError(f"--kv {path}: no .npz with arrays k and v: {e}") from None
    for name, array in (("k", k), ("v", v)):
        if array.ndim != 3 or array.dtype not in (np.float16, np.float32, np.uint16):
            raise BakeRefused(f"--kv {path}: {name} is {array.dtype} {array.shape}; see `bake page --help`.")
    return k, v
