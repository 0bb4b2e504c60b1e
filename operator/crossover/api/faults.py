"""What can go wrong with one request to the Kubernetes API, as exceptions that say which of them it was.

::

    ClusterError
    ├── Unavailable      no answer, an answer that is none, 429 or 5xx after every retry: nothing is known, try later
    ├── Unauthorized     401: the token is refused
    ├── Forbidden        403: the ServiceAccount lacks the right
    ├── NotFound         404: the object, or the kind itself
    ├── Conflict         409: someone changed the object since it was read
    │   └── AlreadyExists    409 on create
    ├── Gone             410: the resourceVersion is too old, list again
    └── Invalid          400, 413, 415, 422: the API server refuses the object

`cluster` raises them; `act` and the controller turn them into conditions. Their text holds the verb, the path and what
the API server says about itself in a Status, shortened; never the body of any other answer.
"""

from __future__ import annotations

MAX_DETAIL = 300
"""Longest piece of the API server's own message that is passed on, in characters."""


class ClusterError(Exception):
    """One request to the Kubernetes API that did not do what it was for."""

    def __init__(self, verb: str, path: str, *, status: int = 0, reason: str = "", detail: str = "") -> None:
        self.verb, self.path, self.status, self.reason = verb, path, status, reason
        self.detail = " ".join(detail.split())[:MAX_DETAIL]
        what = f"HTTP {status}" if status else ""
        parts = [part for part in (what, reason, self.detail) if part]
        super().__init__(f"{verb} {path}: {', '.join(parts) or type(self).__name__}")

    @property
    def code(self) -> str:
        """The class name: what conditions and metrics count by."""
        return type(self).__name__


class Unavailable(ClusterError):  # noqa: N818 - an answer's name, as in the API's own reasons
    """No usable answer. Nothing is known about whether a write happened."""


class Unauthorized(ClusterError):  # noqa: N818
    """The API server refuses our token."""


class Forbidden(ClusterError):  # noqa: N818
    """The ServiceAccount lacks this right."""


class NotFound(ClusterError):  # noqa: N818
    """The object does not exist, or the API server does not serve its kind."""


class Conflict(ClusterError):  # noqa: N818
    """The object was changed since it was read."""


class AlreadyExists(Conflict):
    """The object to be created is there."""


class Gone(ClusterError):  # noqa: N818
    """The resourceVersion to continue from is too old."""


class Invalid(ClusterError):  # noqa: N818
    """The API server refuses the object as it is."""


_BY_STATUS: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


def fault_for(verb: str, path: str, status: int, reason: str = "", detail: str = "") -> ClusterError:
    """The exception for an HTTP status and, where the API server sent a Status object, its reason and message."""
    kind = _BY_STATUS.get(status, Unavailable)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(verb, path, status=status, reason=reason, detail=detail)
