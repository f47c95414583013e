"""The command `backburner serve`: checks its flags, then puts workers, engine and API together."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from backburner import config as c
from backburner.cli_reach import workers_for
from backburner.errors import ConfigError

# At the end, how long the engine may take for the step that it is in before a loopback worker is stopped under it.
STEP_GRACE_S = 3.0


def _names(own: str, *others: str) -> list[str]:
    """The environment's names for a flag of `serve`: ours first, then llama-server's for the same."""
    return [f"BACKBURNER_SERVE_{own}", *others]


def serve(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            envvar=_names("MODEL", "LLAMA_ARG_MODEL"),
            help="A model folder, a Hugging Face id (OWNER/NAME), or `tiny`, the embedded one.",
        ),
    ] = c.EMBEDDED,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="A worker: none, loopback, usb (a phone on a cable), usb:SERIAL, bulk or bulk:SERIAL (a Linux "
            "gadget), tcp://HOST:PORT; may be repeated. Default: none. "
            "?bandwidth=480Mbps&rtt=2ms after it makes the link that slow, for trying out."
        ),
    ] = None,
    device_wait: Annotated[
        float,
        typer.Option(
            help="How many seconds the start waits for a phone (--device usb) that is not there yet; 0: not at all."
        ),
    ] = c.DEVICE_WAIT_S,
    host: Annotated[
        str,
        typer.Option(
            envvar=_names("HOST", "LLAMA_ARG_HOST"),
            help="The address to serve on. Beyond this machine only with an API key.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar=_names("PORT", "LLAMA_ARG_PORT"), help="The port to serve on; 0 takes a free one."
        ),
    ] = c.SERVER_PORT,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=_names("API_KEY", "LLAMA_API_KEY"),
            help="A key that requests have to show; may be repeated, or several with commas. Other users of this "
            "machine see the flag, not the variable and not the file.",
        ),
    ] = None,
    api_key_file: Annotated[
        str | None,
        typer.Option(
            envvar=_names("API_KEY_FILE", "LLAMA_ARG_API_KEY_FILE"),
            help="A file with such keys, one a line; # begins a comment.",
        ),
    ] = None,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            help="Origins whose web pages may use /v1/*, e.g. http://localhost:3000; several with commas, * for any. "
            "Default: none."
        ),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(help="Requests that may wait; more are refused with 429.")
    ] = c.MAX_QUEUE,
    max_body: Annotated[str, typer.Option(help="The largest request body.")] = c.MAX_BODY,
    window_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"The newest positions that stay here. Default: {c.WINDOW_TOKENS:,}; tiny: {c.TINY_WINDOW_TOKENS}."
        ),
    ] = None,
    page_tokens: Annotated[
        int | None,
        typer.Option(help=f"Positions in a page. Default: {c.PAGE_TOKENS:,}; tiny: {c.TINY_PAGE_TOKENS}."),
    ] = None,
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size",
            "-c",
            envvar=_names("CTX_SIZE", "LLAMA_ARG_CTX_SIZE"),
            help="The longest context. Default: what host and worker can hold.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Attention engine: auto, native, numpy or mlx.")] = "auto",
    worker_memory: Annotated[str, typer.Option(help="The memory of a loopback worker's pages.")] = "2GiB",
    split_layer: Annotated[
        str,
        typer.Option(
            help="Where a long read is split: the worker runs the layers from here on. auto (from measured speeds), 0 "
            "(never), or a number of layers."
        ),
    ] = "auto",
    split_min_tokens: Annotated[
        int, typer.Option(help="Reads of at most so many tokens are not split.")
    ] = c.SPLIT_MIN_TOKENS,
    split_decode: Annotated[
        int,
        typer.Option(
            help="For a host that cannot hold the model: it loads this many layers, and the worker (with --model) runs "
            "the others for every token."
        ),
    ] = 0,
    spill_dir: Annotated[
        str | None,
        typer.Option(
            help="Where copies of the pages go that leave this host, so that losing a worker loses nothing. "
            "Default: the user's cache folder; none: no copies, and a lost worker ends the conversations it holds."
        ),
    ] = None,
    spill_size: Annotated[str, typer.Option(help="The most disk space for these copies.")] = c.SPILL_SIZE,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            "--served-model-name",
            "--alias",
            "-a",
            envvar=_names("SERVED_MODEL_NAME", "LLAMA_ARG_ALIAS"),
            help="The model's name in the API; further ones after commas.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="The longest answer when a request does not say.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", "--temp", help="When a request does not say. Default: the model's own; else 0."
        ),
    ] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="JSON for the chat template, e.g. '{\"enable_thinking\": true}'.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serves the OpenAI API on this machine."""
    from backburner.terminal import StartReport, configure_logging, end_at_once_on_signals

    configure_logging(log_level)
    end_at_once_on_signals()
    devices = [c.parse_device(text) for text in device or ["none"]]
    template_kwargs = _template_kwargs(chat_template_kwargs)
    _check_limits(ctx_size, max_tokens, temperature)
    access = _access(api_key, api_key_file, cors_origins)
    if max_queue < 0:
        raise ConfigError(f"--max-queue {max_queue} must be 0 or more.")
    max_body_bytes = c.parse_bytes(max_body)
    if max_body_bytes < 1:
        raise ConfigError(f"--max-body {max_body} admits no request; give for example {c.MAX_BODY}.")
    names = [name.strip() for name in (served_model_name or "").split(",") if name.strip()]
    seam = c.parse_split_layer(split_layer)
    if split_min_tokens < 0:
        raise ConfigError(f"--split-min-tokens {split_min_tokens} must be 0 or more.")
    if split_decode < 0:
        raise ConfigError(f"--split-decode {split_decode} must be 0 (off) or a number of layers.")
    # Zero is a mistake to be told about, not a wish for the default.
    embedded = model == c.EMBEDDED
    if window_tokens is None:
        window_tokens = c.TINY_WINDOW_TOKENS if embedded else c.WINDOW_TOKENS
    if page_tokens is None:
        page_tokens = c.TINY_PAGE_TOKENS if embedded else c.PAGE_TOKENS
    c.check_pages(window_tokens, page_tokens)
    # All that can be wrong with the flags is found before a model is looked for, which may mean a long download.
    _check_engine(engine)
    spill, spill_bytes = c.spill_folder(spill_dir), c.parse_bytes(spill_size)
    worker_bytes = c.parse_bytes(worker_memory)
    # A loopback worker runs layers, too, where that costs little or was asked for: it has the weights a second time.
    worker_model = model if embedded or seam or split_decode else None
    if not 0 <= device_wait <= 86_400:
        raise ConfigError(f"--device-wait {device_wait:g} must be from 0 to 86,400 seconds.")
    workers = workers_for(devices, worker_bytes, log_level, worker_model, device_wait)
    if split_decode and len(workers) != 1:
        raise ConfigError("--split-decode needs exactly one --device, whose worker runs the other layers.")
    loopbacks = [one.loopback for one in workers if one.loopback is not None]
    from backburner.api.server import bind, local_url_of, require_keys_beyond_loopback, url_of

    sock = bind(host, port)
    require_keys_beyond_loopback(sock, bool(access.keys))
    # A host that decodes with a worker keeps no copies.
    if workers and not split_decode and spill is not None:
        from backburner.disk import allow_open_files
        from backburner.kv.spill import check_folder

        check_folder(spill)
        allow_open_files()
    from backburner.api.app import create_app
    from backburner.api.server import serve as run_server
    from backburner.api.settings import ApiSettings
    from backburner.engine.engine import Engine
    from backburner.engine.request import SamplingParams
    from backburner.engine.startup import HostParts, start_runner
    from backburner.model.load import (
        find_model,
        model_type_for,
        read_config,
        read_tokenizer,
        sampling_defaults,
    )

    report = StartReport()
    name, folder = find_model(model)
    model_type_for(read_config(folder))
    tokenizer = read_tokenizer(folder)
    parts = HostParts(
        name=name,
        folder=folder,
        tokenizer=tokenizer,
        window_tokens=window_tokens,
        page_tokens=page_tokens,
        shared_bytes=worker_bytes * len(loopbacks),
        ctx_size=ctx_size,
        engine=engine,
        connect=tuple(one.connect for one in workers),
        split_layer=seam,
        split_tokens_min=split_min_tokens,
        split_decode=split_decode,
        spill_folder=spill,
        spill_bytes=spill_bytes,
    )
    engine_thread = Engine(lambda: start_runner(parts, report), name, max_queue)
    with contextlib.ExitStack() as cleanup:
        # These run from the last to the first. A step that waits for a frozen worker ends when the worker is killed.
        cleanup.callback(engine_thread.close)
        for loopback in loopbacks:
            cleanup.callback(loopback.close)
        cleanup.enter_context(report)
        engine_thread.start()
        cleanup.callback(engine_thread.close, STEP_GRACE_S)
        defaults = sampling_defaults(folder)
        if temperature is not None:
            defaults["temperature"] = temperature
        served = names[0] if names else name
        settings = ApiSettings(
            model_id=served,
            ctx_size=engine_thread.status().ctx_size,
            aliases=tuple({name, model, *names} - {served}),
            sampling=SamplingParams(
                temperature=float(defaults.get("temperature", 0.0)),
                top_p=float(defaults.get("top_p", 1.0)),
                top_k=int(defaults.get("top_k", 0)),
                min_p=float(defaults.get("min_p", 0.0)),
                repetition_penalty=float(defaults.get("repetition_penalty", 1.0)),
            ),
            max_tokens=max_tokens,
            # The embedded model answers best without thinking; others are asked to think, as mlx-lm asks them.
            chat_template_kwargs={"enable_thinking": not embedded} | template_kwargs,
            bound_host=host,
            api_keys=access.keys,
            cors_origins=access.origins,
            max_body_bytes=max_body_bytes,
        )
        api = create_app(engine_thread, tokenizer, settings)
        run_server(
            api,
            sock,
            on_ready=lambda: report.ready(
                url_of(sock), local_url_of(sock), served, bool(access.keys), embedded
            ),
            log_level=log_level,
        )
        report.note("stopped")


def _check_limits(ctx_size: int | None, max_tokens: int | None, temperature: float | None) -> None:
    for flag, value in (("--ctx-size", ctx_size), ("--max-tokens", max_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} {value} must be at least 1.")
    # The range that the API allows a request.
    if temperature is not None and not 0 <= temperature <= 2:
        raise ConfigError(f"--temperature {temperature:g} must be from 0 to 2.")


@dataclass(frozen=True, slots=True)
class _Access:
    keys: tuple[str, ...]
    origins: tuple[str, ...]


def _access(keys: Sequence[str] | None, key_file: str | None, origins: Sequence[str] | None) -> _Access:
    """Who may use the endpoint. Raises ConfigError."""
    from backburner.api.access import read_key_file, split_keys
    from backburner.api.guard import ANY_ORIGIN, parse_origins

    found = split_keys(keys or (), "--api-key")
    if key_file is not None:
        found += read_key_file(c.expanded(key_file))
    allowed = parse_origins(origins or ())
    if ANY_ORIGIN in allowed and not found:
        logging.getLogger("backburner").warning(
            "--cors-origins * without an API key: every web page that this machine's users visit may use the model"
        )
    return _Access(tuple(dict.fromkeys(found)), allowed)


def _check_engine(name: str) -> None:
    from backburner.attention.select import ENGINE_NAMES

    if name not in ENGINE_NAMES:
        raise ConfigError(f"--engine {name!r} is not one of {', '.join(ENGINE_NAMES)}.")


def _template_kwargs(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    import json

    from backburner.api.turn import RESERVED_TEMPLATE_KWARGS

    try:
        value = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"--chat-template-kwargs is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise ConfigError("--chat-template-kwargs must be a JSON object.")
    if reserved := sorted(RESERVED_TEMPLATE_KWARGS.intersection(value)):
        raise ConfigError(f"--chat-template-kwargs: {reserved[0]!r} cannot be set there.")
    return value
