"""The one exception that convert.py turns into a line on stderr and exit code 2."""


class ConvertError(Exception):
    """What is wrong with an input, in one line."""


def mismatch(where: str, found: object, expected: object) -> ConvertError:
    """An error that says where (file and tensor or key), what was found and what was expected."""
    return ConvertError(f"{where}: found {found}, expected {expected}")


def quoted(name: object, limit: int = 120) -> str:
    """A name from a file as one printable line, cut at `limit` characters."""
    text = ascii(name)
    return text if len(text) <= limit else text[: limit - 3] + "..."
