"""A scanner for the Prometheus text format that keeps only the series asked for.

`prometheus_client.parser` builds objects for every line and costs milliseconds a pod; a fleet has thousands of pods.
This finds the lines whose name is wanted with one compiled expression and caches label strings (they repeat from scrape
to scrape). `prometheus_client` is the oracle of its property tests.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

Labels = Mapping[str, str]

_SAMPLE = re.compile(
    r"^([a-zA-Z_:][a-zA-Z0-9_:]*)"  # name
    r"[ \t]*(?:\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?"  # labels, braces inside quotes allowed
    r"[ \t]*([^ \t\r#]+)"  # value
    r"(?:[ \t]+-?[0-9.eE+]+)?"  # timestamp
    r"[ \t]*(?:#.*)?\r?$"  # OpenMetrics exemplar
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ANY_SAMPLE = re.compile(r"\n[^#\n]")
_VALUES = {"NaN": math.nan, "+Inf": math.inf, "Inf": math.inf, "-Inf": -math.inf}
MAX_INFLATED_BYTES = 32_000_000


class NotExposition(Exception):  # noqa: N818 - says what the body is not
    """The body is no text exposition (HTML, binary, a broken or oversized gzip). Its text is never quoted."""


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """Samples by name, in the order served. ``skipped_lines``: lines of wanted names that could not be read."""

    samples: Mapping[str, tuple[Sample, ...]]
    truncated: bool
    """The body does not end with a newline: the last line may be cut and is not used."""
    skipped_lines: int
    names_seen: bool
    """At least one sample line of any name was seen."""

    def values(self, name: str) -> tuple[Sample, ...]:
        return self.samples.get(name, ())

    def one(self, name: str) -> float | None:
        """The value of a family with exactly one finite sample; else None."""
        found = self.samples.get(name, ())
        if len(found) == 1 and math.isfinite(found[0].value):
            return found[0].value
        return None


def inflate(body: bytes) -> bytes:
    """A gzip body unpacked with a bound on its size; any other body as it is. Raises NotExposition."""
    if not body.startswith(b"\x1f\x8b"):
        return body
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error:
        raise NotExposition("broken gzip") from None
    if unpacker.unconsumed_tail:
        raise NotExposition("gzip unpacks to more than the size limit")
    return text


def scan(body: bytes, wanted: frozenset[str]) -> Exposition:
    """Read the wanted series of a text exposition or OpenMetrics body (plain or gzip).

    Raises NotExposition when the body is something else. Never raises on a bad line: it is counted and skipped.
    """
    body = inflate(body)
    head = body[:512].lstrip().lower()
    if head.startswith((b"<", b"{", b"[")) or b"\x00" in body[:512]:
        raise NotExposition("not the text format")
    text = "\n" + body.decode("utf-8", "replace")
    cut = text.rfind("\n") + 1
    truncated = cut < len(text) and not text.startswith("# EOF", cut)
    if truncated:
        text = text[:cut]
    samples: dict[str, list[Sample]] = {}
    skipped = 0
    for line in _lines_of(wanted).findall(text):
        found = _read_plain(line) or _read(line)
        if found is None:
            skipped += 1
        else:
            samples.setdefault(found[0], []).append(found[1])
    seen = bool(samples or skipped) or _ANY_SAMPLE.search(text) is not None
    return Exposition({name: tuple(rows) for name, rows in samples.items()}, truncated, skipped, seen)


@lru_cache(maxsize=64)
def _lines_of(wanted: frozenset[str]) -> re.Pattern[str]:
    """Finds the lines of these names without looking at the others one by one in Python."""
    names = "|".join(re.escape(name) for name in sorted(wanted)) or r"(?!)"
    return re.compile(rf"\n((?:{names})(?![a-zA-Z0-9_:])[^\n]*)")


def _read_plain(line: str) -> tuple[str, Sample] | None:
    """``name{labels} value`` as every client library writes it; None = look closer (`_read`)."""
    name, brace, rest = line.partition("{")
    if not brace or name.endswith((" ", "\t")):
        return None
    text, brace, value = rest.rpartition("} ")
    labels = _labels(text) if brace else None
    number = _number(value.rstrip("\r")) if value[-1:] not in (" ", "\t") else None
    return None if labels is None or number is None else (name, Sample(labels, number))


def _read(line: str) -> tuple[str, Sample] | None:
    match = _SAMPLE.match(line)
    if match is None:
        return None
    name, labels, value = match.groups()
    number = _number(value)
    parsed = _labels(labels or "")
    if number is None or parsed is None:
        return None
    return name, Sample(parsed, number)


def _number(text: str) -> float | None:
    if text in _VALUES:
        return _VALUES[text]
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


@lru_cache(maxsize=16384)
def _labels(text: str) -> Labels | None:
    """Labels of one series; None when what stands between the braces is no list of labels."""
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            return labels if not text[position:].strip(" \t,") else None
        labels[match[1]] = _unescape(match[2])
        position = match.end()
        while position < len(text) and text[position] in " \t,":
            position += 1
    return labels


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: {"n": "\n", "\\": "\\", '"': '"'}.get(match[1], match[0]), text)


def total(samples: Iterable[Sample]) -> float | None:
    """Sum of finite values; None when there is none."""
    finite = [sample.value for sample in samples if math.isfinite(sample.value)]
    return sum(finite) if finite else None
