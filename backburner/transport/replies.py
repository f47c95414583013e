"""What a host goes on with: a reply's tensors, compared with what was asked for."""

from backburner.errors import ProtocolError
from backburner.transport.fields import DTYPE_NAMES, DTYPES, Array


def checked_tensor(what: str, tensor: Array | None, dtype: str, shape: tuple[int, ...]) -> Array:
    """The tensor, if it has the wire's `dtype` and this shape. Raises ProtocolError.

    Too few rows would shift all that come after them, and broadcasting hides other shapes.
    """
    if tensor is None or tensor.dtype != DTYPES[dtype] or tensor.shape != shape:
        found = "nothing" if tensor is None else f"{DTYPE_NAMES[tensor.dtype]} {tensor.shape}"
        raise ProtocolError(f"a worker sent {found} for {what} of shape {shape} in {dtype}")
    return tensor
