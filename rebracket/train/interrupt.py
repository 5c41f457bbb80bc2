"""Ctrl-C as a request: the current step is finished first."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self, final

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class Interrupt:
    """Remembers the first Ctrl-C (or SIGTERM) instead of raising; the second one raises KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, nothing is changed.

    Attributes:
        asked: whether there was one.

    Example:
        >>> with Interrupt() as interrupt:
        ...     signal.raise_signal(signal.SIGINT)
        ...     interrupt.asked
        True
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
