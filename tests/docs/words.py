"""Documents and comments of the repository, and the words in them that look like the path of a file."""

import ast
import fnmatch
import functools
import io
import os
import re
import subprocess
import tokenize

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_SLASHES = (".cc", ".h", ".cu", ".cuh", ".inl", ".proto")
_HASHES = (".cmake", ".sh", ".yaml", ".yml", ".toml", ".conf", "CMakeLists.txt", "Dockerfile", "/dev", "/run", "ignore")
# A literal, which may hold what looks like a comment, or a comment.
_SLASH_TOKEN = re.compile(
    r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|(//[^\n]*|/\*.*?\*/)', re.DOTALL)
_HASH_COMMENT = re.compile(r"(?:^|\s)#(?!!)(.*)")

_SUFFIXES = "cc|h|cu|cuh|inl|py|md|proto|sh|cmake|txt|json|jsonl|yaml|yml|conf|svg|png|toml"
_START = r"(?<![\w/.$:<>\\~*-])"
_FILE = re.compile(rf"{_START}(?:[\w.*-]+/)*\w[\w.*-]*\.(?:(?:{_SUFFIXES})(?![\w/*])|\*(?![\w/*]))")
_FOLDER = re.compile(rf"{_START}[\w.-]+(?:/[\w.*-]*[\w*])+(?![\w<$/])")

_CHAPTER = re.compile(r"\b([A-Z]{4,}) (?:promise|section|chapter|part)s? \d")  # of a document without its suffix


@functools.cache
def files() -> frozenset:
    """Paths of all files from the root: those that git knows or would take, or all where there is no git."""
    try:
        paths = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True,
                               capture_output=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [name for name in folders if not re.match(r"build|\.git$|__pycache__$", name)]
            paths += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return frozenset(path for path in paths if os.path.isfile(os.path.join(ROOT, path)))


@functools.cache
def read(path: str) -> str:
    """The text of a file; of one that is no text, nothing."""
    try:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        return ""


@functools.cache
def _folders() -> frozenset:
    folders = set()
    for path in files():
        while path := os.path.dirname(path):
            folders.add(path)
    return frozenset(folders)


@functools.cache
def _by_name() -> dict:
    paths = {}
    for path in files():
        paths.setdefault(os.path.basename(path), []).append("/" + path)
    return paths


def exists(word: str, at: str) -> bool:
    """Whether `word` is a file or folder: from the root, from the folder of the file `at`, or the end of some path."""
    if "*" in word:
        return any(fnmatch.fnmatch("/" + path, "*/" + word) for path in files())
    beside = os.path.normpath(os.path.join(os.path.dirname(at), word))
    if {word, beside} & (files() | _folders()):
        return True
    return any(path.endswith("/" + word) for path in _by_name().get(os.path.basename(word), ()))


def _python_comments(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            comments.append(ast.get_docstring(node, clean=False) or "")
    return "\n".join(comments)


def prose(path: str) -> str:
    """The words of a file that are meant for people: a whole document, or the comments of a source."""
    if path.endswith(".md"):  # a star outside of code is the end of an emphasis
        return re.sub(r"`[^`\n]*`|(\.)\*+", lambda match: match.group(1) or match.group(), read(path))
    if path.endswith(".py"):
        return _python_comments(read(path))
    if path.endswith(_SLASHES):
        return "\n".join(match.group(2) for match in _SLASH_TOKEN.finditer(read(path)) if match.group(2))
    if ("/" + path).endswith(_HASHES):
        comments = (_HASH_COMMENT.search(line) for line in read(path).splitlines())
        return "\n".join(comment.group(1) for comment in comments if comment)
    return ""


def without_comments(text: str) -> str:
    """A source of C++ or Protobuf without its comments."""
    return _SLASH_TOKEN.sub(lambda match: "" if match.group(2) else match.group(), text)


def names_of_files(text: str) -> set:
    """Words with the suffix of a file, documents named by a chapter, and words that begin with a folder at the root."""
    names = {name for name in _FILE.findall(text) if ".." not in os.path.basename(name)}
    names |= {name + ".md" for name in _CHAPTER.findall(text)}
    tops = {path.split("/")[0] for path in files()}
    for match in _FOLDER.finditer(text):
        if match.group().split("/")[0] in tops:
            names.add(match.group())
    return names


def missing(text: str, at: str) -> set:
    """Names of files in a text of the file `at` that no file has."""
    return {name for name in names_of_files(text) if not exists(name, at)}
