"""A standalone control plane, one supervisor with Envoy, and traffic: what a drill without a cluster stands on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import yaml

from supervisor_middleware.middleware import TlsFiles
from supervisor_middleware.pki.authority import Authority
from supervisor_middleware.pki.credential_files import write_credentials
from supervisor_middleware.pki.store import load_or_create_authority
from tests.apps.rig import NAMESPACE, Rig, Supervised, metrics
from tests.drills.accounting import STAGES, Tally
from tests.drills.traffic import Load, Peers, traffic

API_VERSION: Final = "middleware.openshell.io/v1alpha1"
PATIENCE: Final = 90.0
KILLED: Final = frozenset({"500", "503"})
"""Envoy's own refusals, in the instant that it outlives a supervisor that was killed."""


def a_registration(endpoint: str, **spec: Any) -> dict[str, Any]:
    """Of the service that records. Its patience is not what a drill is about."""
    insecure = {"allowInsecure": True} if endpoint.startswith("http://") else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "SupervisorMiddleware",
        "metadata": {"name": "recorder"},
        "spec": {"grpcEndpoint": endpoint, "maxBodyBytes": 65536, "timeout": "15s", **insecure, **spec},
    }


def a_policy(mark: int, *, namespace: str = NAMESPACE, filler: str = "") -> dict[str, Any]:
    """One whose every stage says `mark`; a `filler` in each makes it large."""
    config = {"mark": str(mark), **({"filler": filler} if filler else {})}
    return {
        "apiVersion": API_VERSION,
        "kind": "SandboxPolicy",
        "metadata": {"name": "outbound", "namespace": namespace},
        "spec": {
            "sandboxSelector": {},
            "networkMiddlewares": {
                stage: {
                    "middleware": f"drill/{stage}",
                    "order": order,
                    "config": config,
                    "endpoints": {"include": ["**.example.com"]},
                }
                for order, stage in enumerate(STAGES, start=1)
            },
        },
    }


@dataclass(slots=True)
class Drill:
    """The rig, the traffic, and the mark of what was published last."""

    rig: Rig
    peers: Peers
    agent: Supervised
    mark: int = 0
    published: set[str] = field(default_factory=set)

    def publish(self, policy: Callable[[int], Mapping[str, Any]] | None = None) -> None:
        """Write the next generation's policy, and nothing more."""
        self.mark += 1
        self.published.add(str(self.mark))
        self.rig.write("policy.yaml", yaml.safe_dump((policy or a_policy)(self.mark)))

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait, with a patience that only a bug exceeds."""
        self.rig.until(what, is_so, seconds=PATIENCE)

    def start(self) -> None:
        """Everything runs, and the first generation is served."""
        self.publish()
        self.rig.control.start()
        self.agent.process.start()
        self.until("the first generation is served", self.rig.is_programmed)

    def load(self) -> Any:
        """Requests, until the end of the block."""
        return self.peers.load(self.agent.proxy)

    def await_served(self, load: Load) -> None:
        """Until clients see what was published last."""
        self.until(f"generation {self.mark} judges", lambda: load.newest() == str(self.mark))

    def roll(self, load: Load, policy: Callable[[int], Mapping[str, Any]] | None = None) -> None:
        """One generation more, all the way to the clients."""
        self.publish(policy)
        self.await_served(load)

    def await_answers(self, load: Load, count: int) -> None:
        """Until `count` requests more were answered."""
        wanted = load.count() + count
        self.until(f"{count} more answers", lambda: load.count() >= wanted)

    def await_connected(self) -> None:
        """Until the supervisor has a stream."""
        self.until("connected", lambda: metrics(self.agent.health).get("connected") == 1)

    def supervisor_was_killed(self, load: Load) -> None:
        """What it answers from now on is another life's."""
        load.process += 1

    def account(self, load: Load, *, refused: frozenset[str] = frozenset()) -> Tally:
        """Every request of `load`: no rule is broken, and nothing is refused but what is forbidden, or `refused`."""
        tally = load.tally(audit=self.agent.folder / "audit.jsonl", published=frozenset(self.published))
        assert not tally.problems, "\n".join(tally.problems[:10])
        assert sum(tally.allowed.values()) > 0
        assert tally.refused["middleware_denied"] > 0
        assert set(tally.refused) <= {"middleware_denied", *refused}, tally.refused
        return tally


@contextmanager
def a_drill(folder: Path) -> Iterator[Drill]:
    """One that is not started yet. The service proves itself, and asks for the supervisor's certificate."""
    now, state = datetime.now(UTC), folder / "state"
    load_or_create_authority(state, trust_domain="openshell.internal", now=now)
    authority = Authority.create(trust_domain="services.example.internal", now=now)
    served = authority.issue_server(dns_names=("localhost",), ip_addresses=(ip_address("127.0.0.1"),), now=now)
    write_credentials(folder / "service-tls", served)
    with ExitStack() as stack:
        peers = stack.enter_context(
            traffic(tls=TlsFiles(directory=folder / "service-tls", client_ca=state / "ca.crt"))
        )
        rig = Rig(folder, stack, upstream=peers.upstream_port)
        bundle = authority.certificate_pem.decode()
        registration = a_registration(peers.service.endpoint, tls={"caBundle": bundle})
        rig.write("registration.yaml", yaml.safe_dump(registration))
        yield Drill(rig, peers, rig.supervisor())
