"""A service that says whatever it should not: reasons, findings, metadata, log lines of its own are its business.

    python -m tests.apps.canary_service ADDRESS

It takes a config whose `mode` is `allow` or `deny`, and explains a refusal with canary words.
"""

import asyncio
import sys

from supervisor_middleware.middleware import (
    Decision,
    Evaluation,
    Finding,
    Middleware,
    Result,
    http_binding,
    http_manifest,
)
from supervisor_middleware.middleware.process import run
from supervisor_middleware.model.canonical import JsonObject
from supervisor_middleware.model.evaluation import FailureCode, StageFailed


class Talkative(Middleware):
    manifest = http_manifest(
        http_binding("acme/talk", max_body_bytes=65536),
        name="Canary Manifest Name",
        version="canary manifest version",
    )

    async def validate_config(self, binding: str, config: JsonObject) -> str | None:
        return None if config.get("mode") in {"allow", "deny", "raise"} else "canary-validate-reason"

    async def evaluate(self, evaluation: Evaluation) -> Result:
        finding = Finding(
            type="canary-finding-type",
            label="canary-finding-label",
            count=1,
            confidence="canary-finding-confidence",
            severity="canary-finding-severity",
        )
        match evaluation.config["mode"]:
            case "allow":
                return Result(decision=Decision.ALLOW, findings=(finding,), metadata={"k": "canary-metadata"})
            case "deny":
                return Result(
                    decision=Decision.DENY,
                    reason="canary-deny-reason",
                    reason_code="canary_deny_code",
                    findings=(finding,),
                    metadata={"k": "canary-metadata"},
                )
            case _:
                raise StageFailed(FailureCode.SERVICE_ERROR) from ValueError("canary-exception")


if __name__ == "__main__":
    asyncio.run(run(Talkative(), address=sys.argv[1], ready=lambda _: None))
