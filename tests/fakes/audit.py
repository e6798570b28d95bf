"""An audit trail in memory."""

from supervisor_middleware.audit.events import Event


class MemorySink:
    """An `AuditSink` that keeps what it is given, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)
