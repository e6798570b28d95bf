"""What `docs/gitops` gives Argo CD and Flux, run over statuses that our own code makes, by a real Lua and a real CEL."""

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import cel
import pytest
import yaml
from lupa import lua51  # the Lua that Argo CD's interpreter implements

from supervisor_middleware.control.drift import Drift
from supervisor_middleware.control.registration_status import registration_status
from supervisor_middleware.control.standings import PolicyStanding, RegistrationStanding
from supervisor_middleware.control.status import policy_status
from supervisor_middleware.distribution.ledger import NOT_CONNECTED, State, View
from supervisor_middleware.model.sandbox import API_VERSION
from supervisor_middleware.model.snapshot import Stored, StoredRevision
from supervisor_middleware.model.statuses import NOT_OBSERVED
from supervisor_middleware.model.violation import Reason, Report, Violation, report
from tests.builders import NOW, a_policy, a_registration, a_revision, an_accepted_registration
from tests.contract.generate import ROOT

FOLDER: Final = ROOT / "docs" / "gitops"
KINDS: Final = ("SupervisorMiddleware", "SandboxPolicy", "ClusterSandboxPolicy")
GENERATION: Final = 4
REVISION: Final = a_revision()
ACCEPTED: Final = StoredRevision(number=3, epoch=7, digest=REVISION.digest, revision=REVISION)
FLUX: Final = {"InProgress": "Progressing", "Failed": "Degraded", "Current": "Healthy"}
Object = Mapping[str, Any]


# -------------------------------------------------------------------------------------------------------- situations


def policies() -> Iterator[Object]:
    """Every verdict, whatever was accepted before and however supervisors stand."""
    stored = a_policy(generation=GENERATION)
    views = [(), (NOT_CONNECTED,), *((View(is_connected=True, state=s, is_active=s is State.ACTIVE),) for s in State)]
    for found, accepted, seen in product(reports(stored), (None, ACCEPTED), views):
        is_good = found is not None and found.is_valid
        standing = PolicyStanding(
            report=found,
            accepted=ACCEPTED if is_good else accepted,
            is_current=is_good,
            views=seen,
            unserved=() if is_good else ("redact",),
            degraded=("redact",) if is_good and accepted is None else (),
        )
        yield an_object(stored, policy_status(stored, standing, now=NOW))


def registrations() -> Iterator[Object]:
    """The same for registrations, and drift."""
    stored = a_registration(generation=GENERATION)
    accepted = an_accepted_registration()
    for found, before, drift in product(reports(stored), (None, accepted), (Drift(), Drift(text="it offers less"))):
        is_good = found is not None and found.is_valid
        standing = RegistrationStanding(
            report=found,
            accepted=accepted if is_good else before,
            is_current=is_good,
            policies=1,
            drift=drift,
            last_described=None if found is None else NOW,
        )
        yield an_object(stored, registration_status(stored, standing, now=NOW))


def reports(stored: Stored) -> list[Report | None]:
    found = (Violation(subject=stored.subject, path="spec", reason=reason, message="m") for reason in Reason)
    return [None, Report(), *(report([v]) for v in found)]


def an_object(stored: Stored, status: Object) -> Object:
    kind = stored.subject.kind
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"generation": GENERATION}, "status": status}


SITUATIONS: Final = (*policies(), *registrations())
NEVER_SEEN: Final[tuple[Object, ...]] = (
    {"metadata": {"generation": 1}},
    {"metadata": {"generation": 1}, "status": {}},
    {"metadata": {"generation": 1}, "status": {"observedGeneration": NOT_OBSERVED}},
)


def held(found: Object) -> dict[str, str]:
    return {c["type"]: c["status"] for c in found["status"]["conditions"]}


def wanted(found: Object) -> str:
    """Ready: Healthy; Stalled or not Ready: Degraded; anything else: Progressing."""
    conditions = held(found)
    if "True" in conditions["Stalled"]:
        return "Degraded"
    return {"True": "Healthy", "False": "Degraded", "Unknown": "Progressing"}[conditions["Ready"]]


def edited(found: Object) -> Object:
    """The same object after its spec was changed, before anybody looked."""
    return {**found, "metadata": {"generation": GENERATION + 1}}


# ------------------------------------------------------------------------------------------------------------- tools


def argo(found: Object, script: str) -> tuple[str, str]:
    """As Argo CD runs it: `obj` is a global, the table that comes back has `status` and `message`."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    lua.globals().obj = lua.table_from(json.loads(json.dumps(found)), recursive=True)
    health = lua.execute(script)
    return health.status, health.message


def flux(found: Object, expressions: Mapping[str, str]) -> str:
    """https://github.com/fluxcd/pkg/blob/main/runtime/cel/status_evaluator.go: generations, then in this order."""
    status = found.get("status") or {}
    if status.get("observedGeneration", found["metadata"]["generation"]) != found["metadata"]["generation"]:
        return "InProgress"
    for name, outcome in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        if name in expressions and cel.evaluate(expressions[name], {**found, "status": status}) is True:
            return outcome
    return "InProgress"


def kstatus(found: Object) -> str:
    """https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/status/generic.go: the first that is true."""
    status = found.get("status") or {}
    if status.get("observedGeneration", found["metadata"]["generation"]) != found["metadata"]["generation"]:
        return "InProgress"
    for condition in status.get("conditions", ()):
        if condition["status"] == "True" and condition["type"] in {"Reconciling", "Stalled"}:
            return {"Reconciling": "InProgress", "Stalled": "Failed"}[condition["type"]]
    return "Current"


def scripts() -> dict[str, str]:
    data = yaml.safe_load((FOLDER / "argocd-cm.yaml").read_text())["data"]
    return {name.rpartition("_")[2]: script for name, script in data.items()}


def checks(text: str) -> dict[str, dict[str, str]]:
    found = {check["kind"]: check for check in yaml.safe_load(text)["healthCheckExprs"]}
    assert {check["apiVersion"] for check in found.values()} == {API_VERSION}
    return found


# ------------------------------------------------------------------------------------------------------------- tests


def test_every_situation_is_among_them() -> None:
    assert {wanted(o) for o in SITUATIONS} == {"Healthy", "Degraded", "Progressing"}
    assert {(c["Ready"], c["Reconciling"], c["Stalled"]) for c in map(held, SITUATIONS)} == {
        ("True", "False", "False"),
        ("True", "True", "False"),
        ("False", "True", "False"),
        ("False", "False", "True"),
        ("Unknown", "True", "False"),
    }


def test_the_script_stands_in_the_configmap_for_every_kind_that_people_write() -> None:
    assert scripts() == dict.fromkeys(KINDS, (FOLDER / "argocd-health.lua").read_text())
    groups = {name.rpartition("_")[0] for name in yaml.safe_load((FOLDER / "argocd-cm.yaml").read_text())["data"]}
    assert groups == {f"resource.customizations.health.{API_VERSION.partition('/')[0]}"}


def test_argo_cd_is_told_how_each_object_is() -> None:
    script = (FOLDER / "argocd-health.lua").read_text()
    for found in SITUATIONS:
        status, message = argo(found, script)
        assert status == wanted(found), found
        told = {c["message"] for c in found["status"]["conditions"] if c["type"] in {"Ready", "Stalled"}}
        assert message in told
        assert argo(edited(found), script) == ("Progressing", "not judged yet")


@pytest.mark.parametrize("found", NEVER_SEEN, ids=str)
def test_argo_cd_waits_for_what_nobody_has_looked_at(found: Object) -> None:
    assert argo(found, (FOLDER / "argocd-health.lua").read_text())[0] == "Progressing"


def test_flux_with_our_expressions_says_what_argo_cd_says() -> None:
    expressions = checks((FOLDER / "flux-health.yaml").read_text())
    assert expressions.keys() == set(KINDS)
    for found in SITUATIONS:
        assert FLUX[flux(found, expressions[found["kind"]])] == wanted(found), found
        assert flux(edited(found), expressions[found["kind"]]) == "InProgress"


@pytest.mark.parametrize("found", NEVER_SEEN, ids=str)
def test_flux_waits_for_what_nobody_has_looked_at(found: Object) -> None:
    for expressions in checks((FOLDER / "flux-health.yaml").read_text()).values():
        assert flux(found, expressions) == "InProgress"


def test_flux_by_itself_says_what_the_table_says() -> None:
    for found in SITUATIONS:
        conditions = held(found)
        expected = (
            "Failed"
            if conditions["Stalled"] == "True"
            else "InProgress"
            if conditions["Reconciling"] == "True"
            else "Current"
        )
        assert kstatus(found) == expected
        assert (kstatus(found) == "Current") <= (conditions["Ready"] == "True")
        assert kstatus(edited(found)) == "InProgress"


def test_the_page_shows_the_expressions_that_are_tested() -> None:
    text = (FOLDER / "flux.md").read_text()
    shown = [yaml.safe_load(part.split("```")[0]) for part in text.split("```yaml\n")[1:]]
    (example,) = (s["spec"]["healthCheckExprs"] for s in shown if "healthCheckExprs" in s["spec"])
    whole = {c["kind"]: c for c in yaml.safe_load((FOLDER / "flux-health.yaml").read_text())["healthCheckExprs"]}
    assert example == [whole["SandboxPolicy"]]
