"""What is served at this moment: one complete generation, or none and then no traffic.

Requests *pin* the generation they begin with and end on it, whatever is swapped in meanwhile: policy and registry
change as one (OS-DST-04). A generation gives its channels back after it was replaced *and* its last request ended.
Used from one event loop; nothing here awaits, so a swap is seen by the next request as a whole.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from supervisor_middleware.errors import Bug
from supervisor_middleware.model.generation import Service, Stage
from supervisor_middleware.model.manifest import Manifest
from supervisor_middleware.supervisor.activation import Candidate
from supervisor_middleware.supervisor.capability import ServiceState, missing_bindings
from supervisor_middleware.supervisor.connections import Lease
from supervisor_middleware.supervisor.exchange import Outcome, Request
from supervisor_middleware.supervisor.reports import ServiceReport
from supervisor_middleware.supervisor.runner import StageCaller, run_chain
from supervisor_middleware.supervisor.stages import Builtin, BuiltinCaller, ServiceCaller
from supervisor_middleware.wire.codec import ConfigUnencodable


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """What every generation of this supervisor evaluates with: the built-ins by binding ID, and a monotonic clock."""

    builtins: Mapping[str, Builtin]
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """One needed service as a generation has it.

    `manifest` is what `Describe` last answered, if it did, and `described_at` (monotonic seconds) when.
    """

    service: Service
    state: ServiceState
    manifest: Manifest | None = None
    described_at: float = 0.0
    lease: Lease | None = field(default=None, repr=False)

    def serves(self, binding: str) -> bool:
        """Whether it has shown that it can do what is needed of this binding.

        One that lacks another binding serves those that it has: a tenant who needs more of the platform's service
        takes nothing from the baseline.
        """
        manifest, service = self.manifest, self.service
        if manifest is None or manifest.dialect is not service.dialect:
            return False
        return binding not in missing_bindings(manifest, service=service)

    def report(self) -> ServiceReport:
        """What to tell the operator now: a service that was ready may have become unreachable since."""
        is_lost = self.state is ServiceState.READY and self.lease is not None and self.lease.is_failing
        return ServiceReport(
            name=self.service.name,
            state=ServiceState.UNREACHABLE if is_lost else self.state,
        )


class Prepared:
    """A generation with everything it needs to run: made by `preparation`, never changed afterwards."""

    def __init__(
        self,
        *,
        candidate: Candidate,
        services: Mapping[str, Connected],
        evaluator: Evaluator,
        leases: ExitStack,
    ) -> None:
        """Takes over `leases`: they are returned when this generation is done."""
        self.candidate = candidate
        self.services = services
        self._clock = evaluator.clock
        self._leases = leases
        self._pins = 0
        self._is_retired = False
        stages = candidate.sealed.generation.stages
        self._callers = {s.key: _caller(s, services=services, builtins=evaluator.builtins) for s in stages}

    @property
    def digest(self) -> str:
        """The generation's name."""
        return self.candidate.sealed.digest

    def reports(self) -> tuple[ServiceReport, ...]:
        """The state of each needed service, as of now."""
        return tuple(self.services[name].report() for name in sorted(self.services))

    def states(self) -> Mapping[str, ServiceState]:
        """The same by name, for decisions."""
        return {r.name: r.state for r in self.reports()}

    def chain_for(self, host: str) -> tuple[Stage, ...]:
        """The stages that apply to a host (as returned by `normalize_host`), in running order."""
        return self.candidate.sealed.generation.chain_for(host)

    async def evaluate(self, stages: tuple[Stage, ...], request: Request) -> Outcome:
        """Run the chain for one request. `stages` come from `chain_for` of this very generation."""
        return await run_chain(stages, request, caller_of=self._caller_of, clock=self._clock)

    @contextmanager
    def pinned(self) -> "Iterator[Prepared]":
        """Keep its channels for the block."""
        if self._is_retired and not self._pins:
            raise Bug("a generation that gave its channels back cannot serve")
        self._pins += 1
        try:
            yield self
        finally:
            self._pins -= 1
            self._end_if_done()

    def retire(self) -> None:
        """It takes no new request: give the channels back once the last one has ended."""
        self._is_retired = True
        self._end_if_done()

    def _caller_of(self, stage: Stage) -> StageCaller | None:
        return self._callers.get(stage.key)

    def _end_if_done(self) -> None:
        if self._is_retired and not self._pins:
            self._leases.close()


class Runtime:
    """The generation being served. Not configured until the first `swap`; never unconfigured after it."""

    def __init__(self) -> None:
        self._current: Prepared | None = None

    @property
    def current(self) -> Prepared | None:
        """The generation being served; to look at, not to serve with (`pin` does that)."""
        return self._current

    @property
    def is_ready(self) -> bool:
        """Whether traffic can be taken at all: never configured means closed."""
        return self._current is not None

    def pin(self) -> AbstractContextManager[Prepared] | None:
        """The generation being served, kept for the block even if another becomes active; None: never configured.

        Enter it before anything else is awaited.
        """
        return None if self._current is None else self._current.pinned()

    def swap(self, prepared: Prepared) -> None:
        """Serve `prepared` from the next request on."""
        previous, self._current = self._current, prepared
        if previous is not None and previous is not prepared:
            previous.retire()

    def stop(self) -> None:
        """Serve nothing any more; for the end of the process, after the last request."""
        previous, self._current = self._current, None
        if previous is not None:
            previous.retire()


def _caller(
    stage: Stage, *, services: Mapping[str, Connected], builtins: Mapping[str, Builtin]
) -> StageCaller | None:
    """Who asks `stage`. None lets the stage follow its `on_error`: a service that has not shown it can, above all."""
    if stage.service is None:
        builtin = builtins.get(stage.binding)
        return None if builtin is None else BuiltinCaller(builtin)
    connected = services.get(stage.service)
    if connected is None or connected.lease is None or not connected.serves(stage.binding):
        return None
    try:
        return ServiceCaller(connected.lease.channel, dialect=connected.service.dialect, config=stage.config)
    except ConfigUnencodable:
        return None
