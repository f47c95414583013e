"""The exception family: few, named, and each message says what to do."""


class BackburnerError(Exception):
    """Base of everything we raise on purpose. `code` is stable and crosses the wire and the API."""

    code = "internal_error"


class ConfigError(BackburnerError):
    """A flag, environment variable or file of the user is wrong."""

    code = "config_error"


class ModelError(BackburnerError):
    """The model cannot be loaded or is not of the supported family."""

    code = "model_error"


class ContextExceeded(BackburnerError):
    """The prompt and its answer do not fit in the context."""

    code = "context_length_exceeded"


class GrammarError(BackburnerError):
    """The answer cannot be kept to the JSON schema, or to the tools' schemas, that the request asks for."""

    code = "invalid_grammar"


class Unsupported(BackburnerError):
    """The request asks for what cannot be done in the way this host runs its model."""

    code = "unsupported"


class HostFull(BackburnerError):
    """The host's memory cannot hold the positions that no worker takes."""

    code = "host_full"


class BakeRefused(BackburnerError):
    """A page cannot become a Core ML model, or its self-test found it too inexact; the ordinary engine keeps it."""

    code = "bake_refused"


class EngineDead(BackburnerError):
    """The engine thread has failed or is shutting down; nothing can be generated."""

    code = "engine_unavailable"


class QueueFull(BackburnerError):
    """As many requests wait already as may."""

    code = "queue_full"


class TransportError(BackburnerError):
    """Anything that ends the use of a link."""

    code = "transport_error"


class LinkClosed(TransportError):
    """The other side is gone: end of file, reset, or we closed the link."""

    code = "link_closed"


class LinkTimeout(TransportError):
    """No reply within the deadline."""

    code = "link_timeout"


class ProtocolError(TransportError):
    """The peer sent bytes that are not our protocol; the link must be closed."""

    code = "protocol_error"


class NotPaired(TransportError):
    """The other side has no key that this machine knows, or does not know this machine's."""

    code = "not_paired"


class WorkerLost(TransportError):
    """The worker went away while it held pages that the answer needs."""

    code = "worker_lost"


class RemoteError(BackburnerError):
    """The worker answered a request with an Error message. The link itself is still good."""

    code = "remote_error"


class WorkerBusy(RemoteError):
    """The worker already serves another host."""

    code = "worker_busy"


class OutOfBudget(RemoteError):
    """The worker's memory budget does not admit the page."""

    code = "out_of_budget"


class Mismatch(RemoteError):
    """Host and worker differ in protocol version, page geometry or model; the message says which side has what."""

    code = "mismatch"


class UnknownPage(RemoteError):
    """The worker does not have a page or sequence that the host named."""

    code = "unknown_page"


class BadRequest(RemoteError):
    """The worker found a request well-formed but impossible (wrong shape, wrong layer)."""

    code = "bad_request"


class NoModel(RemoteError):
    """The worker was started without a model: it holds pages and runs no layers."""

    code = "no_model"


REMOTE_ERRORS: dict[str, type[RemoteError]] = {
    cls.code: cls
    for cls in (RemoteError, WorkerBusy, OutOfBudget, Mismatch, UnknownPage, BadRequest, NoModel)
}


def remote_error(code: str, text: str) -> RemoteError:
    """The exception for an Error message that came over the wire; unknown codes stay readable."""
    cls = REMOTE_ERRORS.get(code)
    return cls(text) if cls else RemoteError(f"{code}: {text}")
