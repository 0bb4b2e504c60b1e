"""The one contract behind which every inference server stands.

An engine module is pure: it names the paths to fetch and reads the answers; fetching is `observe`'s, patching is
`act`'s. It never raises on what a server says: a server that lies gives a `PodReading` with a fault or an unknown.
It raises `Refusal` on what a *user's template or schedule* asks for, in the engine's own terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from crossover.api.fleet import Capability, EngineType, PodReading, SpeculationSettings

Schedule = tuple[tuple[int, int], ...]
"""(running requests from, draft tokens), first key 1, strictly ascending: draft length d from that batch on."""


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a failure of ours
    """What cannot be changed safely, why, and what the user can do.

    code: CamelCase condition reason; field: path in the pod template or spec; fix: one sentence.
    """

    def __init__(self, code: str, message: str, *, field: str, fix: str) -> None:
        super().__init__(f"{field}: {message} {fix}")
        self.code, self.message, self.field, self.fix = code, message, field, fix


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, already limited in size and time by the caller. Never logged, never put into status."""

    path: str
    status: int
    body: bytes
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class WantedSpeculation:
    """What a template shall ask for. ``schedule`` wins over ``draft_tokens``; both empty with enabled = leave the
    draft length as the user wrote it. ``enabled=False`` = start the process without speculation."""

    enabled: bool
    draft_tokens: int | None = None
    schedule: Schedule = ()
    forced_acceptance_length: float | None = None
    """Tokens per request and step, bonus token included, that the server shall take whatever its draft is worth: what it
    answers is then meaningless, so only a scratch pod is ever started like this. None = as the user wrote it."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file the container needs (adaptive JSON, YAML); `act` makes it a ConfigMap, a volume and a mount."""

    name: str
    content: str
    mount_path: str


@dataclass(frozen=True, slots=True)
class Models:
    """Names or paths as the arguments have them. None = not told, or no draft model of its own (MTP, n-gram)."""

    model: str | None = None
    draft_model: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerEdit:
    """The smallest change of one container of a pod template: only keys that differ are set."""

    container: str
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variable -> new value; None removes it."""
    file: ConfigFile | None = None
    removed: Mapping[str, Any] = field(default_factory=dict)
    """What the edit takes out and a later `enabled=True` must put back (kept in a template annotation by `act`)."""

    @property
    def is_empty(self) -> bool:
        return self.command is None and self.args is None and not self.env and self.file is None

    def with_env(self, variables: Mapping[str, str]) -> ContainerEdit:
        return replace(self, env={**self.env, **variables})


@dataclass(frozen=True, slots=True)
class CapState:
    """A live cap on the running batch as one server shows it. Requests per scheduler."""

    in_force: tuple[int, ...]
    """One for each scheduler (data-parallel rank)."""
    at_start: int
    """What the process started with: to set it again is to take the cap away."""
    most: int
    """The largest value that the server accepts."""
    knob: str
    """The server's own name of it in this build."""


class RunningCap(Protocol):
    """The one thing that some engines change while they run: how many requests the batch may hold.

    What the server answers to a request is not believed: the state is read back (`act.live`).
    """

    state_paths: tuple[str, ...]
    """First that answers 200 wins."""

    def state(self, answer: Answer) -> CapState | None:
        """What is in force; None = this build shows no such knob. The body may hold credentials and stays in here."""

    def request(self, state: CapState, cap: int) -> tuple[str, bytes]:
        """(path, JSON body) of the POST that asks for ``cap`` on every scheduler."""


class Engine(Protocol):
    """One inference server: what it shows, what it accepts."""

    type: EngineType
    default_port: int
    info_paths: tuple[str, ...]
    """Asked once per process (minutes apart), first that answers 200 wins."""
    running_cap: RunningCap | None
    """None = nothing about the batch can be changed while the process runs."""

    def load_paths(self, capability: Capability | None) -> tuple[tuple[str, ...], ...]:
        """Groups of paths in order of preference: the first group whose first path answers 200 is read whole."""

    def recognises(self, answer: Answer) -> bool:
        """True when only this engine answers like that. Used by detection and by `inspect --engine auto`."""

    def read(self, answers: Sequence[Answer], now_seconds: float, previous: PodReading | None) -> PodReading:
        """One reading from one scrape. ``previous`` is the pod's last reading: it tells stale from steady."""

    def capability(
        self, info: Answer | None, container: Mapping[str, Any] | None, files: Mapping[str, str] | None = None
    ) -> Capability | None:
        """What this pod can do, from the server's own description first and its container spec second.

        ``files``: path -> content of the ConfigMap files that the container mounts.

        None when neither says. The body of ``info`` may hold credentials: it must not leave this call.
        """

    def read_settings(self, container: Mapping[str, Any], files: Mapping[str, str]) -> SpeculationSettings:
        """The speculation settings in a container (as JSON dict of the pod template). ``files``: path -> content of
        mounted ConfigMap files. Raises `Refusal` for a form that cannot be read safely."""

    def models(self, container: Mapping[str, Any], files: Mapping[str, str]) -> Models:
        """What the container loads, as far as its arguments tell. Never raises."""

    def render(self, schedule: Schedule, capability: Capability) -> ConfigFile | str:
        """A schedule in this engine's dialect for this build. Raises `Refusal` with what the engine would refuse."""

    def edit(
        self,
        container: Mapping[str, Any],
        files: Mapping[str, str],
        wanted: WantedSpeculation,
        capability: Capability,
        removed: Mapping[str, Any],
    ) -> ContainerEdit:
        """Change only the speculation settings; idempotent: an edit towards what is there is empty.

        ``removed`` is what an earlier edit took out. Raises `Refusal` where the change is not safe."""
