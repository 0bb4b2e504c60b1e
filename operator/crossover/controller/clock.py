"""The real clock. Tests bring their own."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time that never runs backwards: Kubernetes' timestamps are wall time, dwell times must not jump with NTP."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
