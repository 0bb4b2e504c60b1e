"""Container command lines, as the servers find their own words in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path


class LaunchError(Exception):
    """The server exits at start-up with this message, after loading where the real one does."""


def words_after(
    command: Sequence[str], entry_points: Sequence[str], environ: Mapping[str, str] | None = None
) -> list[str]:
    """The server's own words: after its entry point (`module`, `file.py` or `program verb`), also inside `sh -c`."""
    words = shell_words(command, environ or {})
    for entry in entry_points:
        parts = entry.split()
        for start in range(len(words) - len(parts) + 1):
            found = words[start : start + len(parts)]
            if all(_names(word, part) for word, part in zip(found, parts, strict=True)):
                return words[start + len(parts) :]
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    return words[first:]


def _names(word: str, part: str) -> bool:
    return word == part or word.endswith("/" + part)


def shell_words(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The words of a command; those of the script where it is `sh -c SCRIPT`, read once more where that is an `eval`."""
    words = list(command)
    if len(words) < 3 or words[0].rsplit("/", 1)[-1] not in ("sh", "bash") or not words[1].endswith("c"):
        return words
    script = shlex.split(words[2].replace("\\\n", " "))
    if script[:1] == ["eval"]:
        return shlex.split(" ".join(_expanded(word, environ) for word in script[1:]))
    expanded: list[str] = []
    for word in script:
        value = _expanded(word, environ)
        expanded += value.split() if _VARIABLE.fullmatch(word) else [value]
    return expanded


_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*)|@)")


def _expanded(word: str, environ: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: environ.get(found[1] or found[2] or "", ""), word)


def inside(root: Path, path: str) -> Path:
    """Where a path of the container lies; one that is not below ``root`` is taken as it stands."""
    file = root / path.lstrip("/")
    return file if file.exists() else Path(path)
