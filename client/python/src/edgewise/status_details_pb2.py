"""Messages of edgewise/status_details.proto."""

from edgewise.descriptors import fill

fill(globals(), "edgewise/status_details.proto")
