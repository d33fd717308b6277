"""Messages of edgewise/v1/inference.proto."""

from edgewise.descriptors import fill

fill(globals(), "edgewise/v1/inference.proto")
