"""The one exception that convert.py turns into a line on stderr and exit code 2."""

from collections.abc import Iterator

_MAX_BITS = 512  # of an integer that is shown by its digits


class ConvertError(Exception):
    """A fault of an input, described in one line."""


def mismatch(where: str, found: object, expected: object) -> ConvertError:
    """An error that says where (file and tensor or key), what was found and what was expected."""
    return ConvertError(f"{where}: found {found}, expected {expected}")


def quoted(value: object, limit: int = 120) -> str:
    """A value from a file as one printable line of at most `limit` characters.

    Only what is shown is built: a list may hold one list a billion times, or be nested without an end.
    """
    text = ""
    for piece in _pieces(value, limit):
        text += piece
        if len(text) > limit:
            return text[: limit - 3] + "..."
    return text


def _pieces(value: object, limit: int) -> Iterator[str]:
    """The text of a value, in pieces. Each level begins with a bracket, so few levels are entered before a cut."""
    if isinstance(value, str):
        yield ascii(value[:limit])
    elif isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(item, limit)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "[" if isinstance(value, list) else "("
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(item, limit)
        yield "]" if isinstance(value, list) else ",)" if len(value) == 1 else ")"
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        yield f"an integer of {value.bit_length()} bits"
    elif value is None or isinstance(value, (int, float)):
        yield ascii(value)
    else:
        yield f"a {type(value).__name__}"
