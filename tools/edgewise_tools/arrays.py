"""NumPy as `np`. Without it `np` is None: `convert.py --help` works, and what computes asks require_numpy first."""

import os
import sys

from .errors import ConvertError

try:
    import numpy as np
except ModuleNotFoundError:
    np = None

DEBIAN_PYTHON = "/usr/bin/python3"  # what `apt install python3-numpy` serves


def require_numpy() -> None:
    if np is None:
        remedy = "apt install python3-numpy"
        if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON):
            remedy += f" (for {DEBIAN_PYTHON}), or {sys.executable} -m pip install numpy"
        raise ConvertError(f"{sys.executable} lacks NumPy: {remedy}")
