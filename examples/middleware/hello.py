"""The smallest middleware: lets every request pass and adds a header. Run it: python examples/middleware/hello.py."""

import asyncio

from supervisor_middleware.middleware import (
    Decision,
    Evaluation,
    ExistingHeader,
    Middleware,
    Result,
    WriteHeader,
    http_binding,
    http_manifest,
    run,
)


class Hello(Middleware):
    """Policies name its binding: `middleware: acme/hello`."""

    manifest = http_manifest(http_binding("acme/hello", timeout="500ms"), name="hello", version="1.0.0")

    async def evaluate(self, evaluation: Evaluation) -> Result:
        """Greet the sandbox that sends the request."""
        greeting = WriteHeader(
            name="x-openshell-middleware-hello",
            value=evaluation.context.sandbox_id,
            on_existing=ExistingHeader.OVERWRITE,
        )
        return Result(decision=Decision.ALLOW, mutations=(greeting,))


if __name__ == "__main__":
    asyncio.run(run(Hello(), address="127.0.0.1:50051"))
