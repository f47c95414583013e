"""Between MLX arrays and the numpy arrays that pages and links work with."""

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt


def to_numpy(x: mx.array) -> npt.NDArray[Any]:
    """An evaluated MLX array as numpy, without a copy on CPU. bfloat16 comes as its uint16 bits."""
    if x.dtype == mx.bfloat16:
        x = x.view(mx.uint16)
    return np.array(x, copy=False)


def from_numpy(x: npt.NDArray[Any], dtype: mx.Dtype) -> mx.array:
    """The way back: uint16 becomes bfloat16 again if `dtype` is that; other arrays keep their own dtype."""
    array = mx.array(x)
    return array.view(mx.bfloat16) if dtype == mx.bfloat16 and x.dtype == np.uint16 else array
