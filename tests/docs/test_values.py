"""The values of a request (server/request/request.h) are written by one stage each, and only read by the others."""

import re
import unittest

import words

# The files that may write to a value, by its name as a member of Request.
WRITERS = {
    "ticket": {"server/handler/handler.cc", "server/handler/shadow.cc"},  # and server/wire, which makes it
    "work": {"server/handler/handler.cc", "server/handler/shadow.cc"},  # whole, as server/validate made it
    "forecast": {"server/handler/handler.cc", "server/handler/shadow.cc", "server/schedule/degrade.cc"},
    "outcome": {"server/schedule/queue.cc", "server/schedule/scheduler.cc", "server/schedule/passes.cc",
                "server/schedule/generations.cc"},
    "outcome.generated": {"server/handler/handler.cc"},
}
_FIELD = r"(\w+(?:\.\w+|\[[^\]]*\])*)?"
_WRITES = r"(?:\s*(?:=(?!=)|[-+|&*/]=|\+\+|--)|\.(?:emplace|emplace_back|push_back|clear|reset|resize|insert|erase)\()"
_MEMBER = re.compile(r"(?:\.|->)(ticket|work|forecast|outcome)(?:\." + _FIELD + r")?" + _WRITES)
_REFERENCE = re.compile(r"(?<!const )\b(?:Ticket|Work|Forecast|Outcome|Outcome::Generated)& (?:\w+) = [\w.>*()-]*(ticket|work|forecast|outcome\.generated|outcome)\b")


def writers() -> dict:
    """{value: {file that writes to it}} over the sources of the server, without server/wire and server/validate."""
    found = {}
    for path in sorted(words.files()):
        if not re.fullmatch(r"server/(?!wire|validate).*\.(cc|h)", path):
            continue
        text = re.sub(r"//[^\n]*", "", words.read(path))
        for match in _MEMBER.finditer(text):
            value, field = match.group(1), match.group(2) or ""
            found.setdefault("outcome.generated" if field.startswith("generated") else value, set()).add(path)
        for match in _REFERENCE.finditer(text):
            found.setdefault(match.group(1), set()).add(path)
    return found


class WritersTest(unittest.TestCase):
    def test_each_value_has_the_writers_of_one_stage(self):
        self.assertEqual(writers(), WRITERS)

    def test_writes_are_seen(self):
        for text in ("request.work.tokens = 3", "request->outcome.results.push_back(x)", "r.forecast = f",
                     "a->outcome.generated.edges += 1.0", "r.work.inputs[i].samples = 2"):
            self.assertRegex(text, _MEMBER)
        for text in ("if (request.work.tokens == 3)", "x = request.work.tokens", "r.forecast.samples >= 2"):
            self.assertNotRegex(text, _MEMBER)
        self.assertRegex("Forecast& forecast = request.forecast;", _REFERENCE)
        self.assertNotRegex("const Forecast& forecast = request.forecast;", _REFERENCE)


if __name__ == "__main__":
    unittest.main()
