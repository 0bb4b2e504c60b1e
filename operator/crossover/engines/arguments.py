"""A container's command line in every form users write it, read and edited token by token.

Forms: an argument list (pairs or ``--flag=value``) in `command`, `args` or both; and one shell string
(``sh -c "..."``), which is edited only where it is a single plain command without quoting or expansion around what
changes. Editing touches the tokens of the flags it manages and nothing else: ``render(parse(x)) == x``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from crossover.engines.contract import Refusal

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_UNSAFE = re.compile(r"[|;&<>()`\"'*?#~\[\]{}]|\$\(|\$\{?[A-Za-z_]")
_CONTINUATION = re.compile(r"\\\r?\n")


@dataclass(frozen=True, slots=True)
class Flag:
    """One way to write an option. ``takes_value=False``: a switch."""

    names: tuple[str, ...]
    """All spellings, the canonical one first; underscores are equal to dashes."""
    takes_value: bool = True


def positional(words: Sequence[str], after: str) -> str | None:
    """The word next to ``after`` (a program or a subcommand) where it is no option."""
    for word, following in pairwise(words):
        if word.rpartition("/")[2] == after:
            return None if following.startswith("-") else following
    return None


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Where the tokens stand and what they are.

    ``field``: ``"args"`` or ``"command"``: the list that holds the options (``args`` when both do).
    ``before`` are the tokens of the other list, never touched. ``shell_index``: position of the shell string, if any.
    """

    field: str
    tokens: tuple[str, ...]
    before: tuple[str, ...] = ()
    shell_index: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """All tokens of the program, in order; a shell string is split at white space."""
        if self.shell_index is None:
            return (*self.before, *self.tokens)
        return tuple(_CONTINUATION.sub(" ", self.tokens[self.shell_index]).split())

    def value(self, flag: Flag) -> str | None:
        """The last value given, as argparse takes it; ``""`` for a switch that is there; None when absent."""
        found: str | None = None
        words = self.words
        for position, word in enumerate(words):
            name, equals, value = word.partition("=")
            if not _same(name, flag):
                continue
            if equals:
                found = value
            elif not flag.takes_value:
                found = ""
            elif position + 1 < len(words):
                found = words[position + 1]
        return found

    def has(self, flag: Flag) -> bool:
        return self.value(flag) is not None

    def without(self, *flags: Flag) -> CommandLine:
        """All occurrences of the flags removed, with their values."""
        if self.shell_index is not None:
            return self._with_shell(_without(self._safe_shell_words(), flags))
        _refuse_in_other_list(self.before, flags, self.field)
        return CommandLine(self.field, tuple(_without(self.tokens, flags)), self.before)

    def with_value(self, flag: Flag, value: str | None) -> CommandLine:
        """The flag set (``None`` for a switch): in place where it stands, else appended as ``--flag=value``."""
        if self.value(flag) == ("" if value is None else value):
            return self
        if self.shell_index is not None:
            return self._with_shell(_with_value(self._safe_shell_words(), flag, value))
        _refuse_in_other_list(self.before, (flag,), self.field)
        return CommandLine(self.field, tuple(_with_value(self.tokens, flag, value)), self.before)

    def inserted(self, position: int, words: Sequence[str]) -> CommandLine:
        """Words put back at their old place in the list (at its end when it has become shorter)."""
        if self.shell_index is not None:
            shell = self._safe_shell_words()
            return self._with_shell([*shell[:position], *words, *shell[position:]])
        tokens = [*self.tokens[:position], *words, *self.tokens[position:]]
        return CommandLine(self.field, tuple(tokens), self.before)

    def taken(self, *flags: Flag) -> tuple[int, tuple[str, ...]]:
        """Where the first of the flags stands and the tokens of all of them: what `without` takes out."""
        words = list(self.words) if self.shell_index is not None else list(self.tokens)
        first, taken = len(words), []
        position = 0
        while position < len(words):
            length = _length(words, position, flags)
            if length:
                first = min(first, position)
                taken += words[position : position + length]
            position += max(length, 1)
        return first, tuple(taken)

    def _safe_shell_words(self) -> list[str]:
        assert self.shell_index is not None
        text = self.tokens[self.shell_index]
        joined = _CONTINUATION.sub(" ", text).strip()
        if _UNSAFE.search(joined) or "\n" in joined:
            raise Refusal(
                "ShellCommand",
                "the server is started by a shell script that cannot be edited safely.",
                field=f"spec.template.spec.containers[].{self.field}[{self.shell_index}]",
                fix="Write the command as a list (command: [...], args: [...]).",
            )
        return joined.split()

    def _with_shell(self, words: Sequence[str]) -> CommandLine:
        assert self.shell_index is not None
        tokens = list(self.tokens)
        tokens[self.shell_index] = " ".join(words)
        return CommandLine(self.field, tuple(tokens), self.before, self.shell_index)


def parse(container: Mapping[str, Any]) -> CommandLine:
    """The command line of a container of a pod template. Raises Refusal when only the image knows it."""
    command = tuple(str(word) for word in container.get("command") or ())
    args = tuple(str(word) for word in container.get("args") or ())
    if not command and not args:
        raise Refusal(
            "NoCommand",
            "the container has neither command nor args, so its options are in the image.",
            field="spec.template.spec.containers[].args",
            fix="Write the server's options into args.",
        )
    for field, tokens in (("command", command), ("args", args)):
        index = _shell_string(command, args, field)
        if index is not None:
            return CommandLine(field, tokens, command if field == "args" else (), index)
    if args:
        return CommandLine("args", args, command)
    return CommandLine("command", command)


def _shell_string(command: tuple[str, ...], args: tuple[str, ...], field: str) -> int | None:
    """Index in ``field`` of the string after ``-c`` of a shell, if the container starts one."""
    words = (*command, *args)
    if not words or words[0].rsplit("/", 1)[-1] not in SHELLS:
        return None
    for position, word in enumerate(words[1:], 1):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c") and position + 1 < len(words):
            place = position + 1
            if place < len(command):
                return place if field == "command" else None
            return place - len(command) if field == "args" else None
        if not word.startswith("-"):
            return None
    return None


def _normal(name: str) -> str:
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


@lru_cache(maxsize=512)
def _spellings(flag: Flag) -> frozenset[str]:
    return frozenset(map(_normal, flag.names))


def _same(name: str, flag: Flag) -> bool:
    return name.startswith("-") and _normal(name) in _spellings(flag)


def with_prefixes(flags: Sequence[Flag], stem: str, others: Sequence[str] = ()) -> tuple[Flag, ...]:
    """The flags with every unique abbreviation that argparse accepts as a spelling of its own.

    ``stem``: what all of them begin with; ``others``: options of the program that make an abbreviation ambiguous.
    """
    known = [name for flag in flags for name in flag.names] + list(others)

    def abbreviations(flag: Flag) -> list[str]:
        found = []
        for name in flag.names:
            for length in range(len(stem) + 1, len(name)):
                short = name[:length]
                meant = {known_name for known_name in known if known_name.startswith(short)}
                if meant <= set(flag.names) and short not in found:
                    found.append(short)
        return found

    return tuple(Flag((*flag.names, *abbreviations(flag)), flag.takes_value) for flag in flags)


def _length(words: Sequence[str], position: int, flags: Sequence[Flag]) -> int:
    """How many tokens one of the flags takes up at ``position``; 0 = none of them stands there."""
    name, equals, _ = words[position].partition("=")
    for flag in flags:
        if _same(name, flag):
            alone = bool(equals) or not flag.takes_value or position + 1 >= len(words)
            return 1 if alone else 2
    return 0


def _without(words: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    kept = []
    position = 0
    while position < len(words):
        length = _length(words, position, flags)
        if not length:
            kept.append(words[position])
        position += max(length, 1)
    return kept


def _with_value(words: Sequence[str], flag: Flag, value: str | None) -> list[str]:
    """The last occurrence is the one in force: it is changed where it stands."""
    places = [position for position in range(len(words)) if _length(words, position, (flag,))]
    new = list(words)
    if not places:
        return [*new, flag.names[0] if value is None else f"{flag.names[0]}={value}"]
    if value is None:
        return new
    place = places[-1]
    name, equals, _ = new[place].partition("=")
    if equals or place + 1 >= len(new):
        new[place] = f"{name}={value}"
    else:
        new[place + 1] = value
    return new


def _refuse_in_other_list(before: Sequence[str], flags: Sequence[Flag], field: str) -> None:
    if any(_length(before, position, flags) for position in range(len(before))):
        raise Refusal(
            "SplitCommandLine",
            f"the option {flags[0].names[0]} stands in command while other options stand in {field}.",
            field="spec.template.spec.containers[].command",
            fix="Move all options into args.",
        )
