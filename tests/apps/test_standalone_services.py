"""Services that are down when a supervisor starts, that come up by themselves, and that may be used no more."""

from tests.apps.rig import KEY, SECRET, Rig, probe


def test_one_that_starts_while_a_service_is_down_runs_built_ins_and_takes_the_service_once_it_is_up(rig: Rig) -> None:
    rig.run(rig.supervisor("first"))
    accepted = rig.accepted()
    rig.service.kill()
    late = rig.supervisor("late")
    late.process.start()
    rig.until("it serves", lambda: probe(late.health, "/readyz")[0] == 200)
    assert late.send("www.example.com", KEY).body == "[REDACTED]"
    refused = late.send("api.example.com", SECRET)
    assert (refused.status, refused.error) == (403, "middleware_failed")
    assert late.send("telemetry.example.com", SECRET).body == SECRET

    rig.service.start()
    rig.until("it has the service", lambda: late.send("api.example.com", SECRET).body == "[REDACTED]")
    assert late.send("telemetry.example.com", SECRET).body == "[REDACTED]"
    assert rig.accepted() == accepted


def test_plaintext_that_was_accepted_ends_with_the_second_transport_phase(rig: Rig) -> None:
    agent = rig.supervisor()
    rig.run(agent)
    assert agent.send("api.example.com", SECRET).body == "[REDACTED]"
    rig.control.stop()
    rig.control.environment = {**rig.control.environment, "SMW_TRANSPORT_PHASE": "2"}
    rig.control.start()
    rig.until("nothing is sent there any more", lambda: agent.send("api.example.com", SECRET).status == 403)
    assert agent.send("telemetry.example.com", SECRET).body == SECRET
    assert agent.send("www.example.com", KEY).body == "[REDACTED]"

    def is_told() -> bool:
        violations = rig.status("SupervisorMiddleware", "terms").get("violations", ())
        return [v["reason"] for v in violations] == ["InsecureTransport"]

    rig.until("it is said so", is_told)
    rig.until("its policy says so", lambda: rig.condition("ResolvedRefs") == "False")
