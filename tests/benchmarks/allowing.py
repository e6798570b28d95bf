"""The floor of admission: an aiohttp webhook over TLS that allows everything at once. A process of its own.

`python -m tests.benchmarks.allowing PORT CERTIFICATE KEY`
"""

import ssl
import sys

from aiohttp import web


async def _allow(request: web.Request) -> web.Response:
    review = await request.json()
    response = {"uid": review["request"]["uid"], "allowed": True}
    return web.json_response({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response})


def main(port: str, certificate: str, key: str) -> None:
    """Serve until ended."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    application = web.Application()
    application.router.add_post("/validate", _allow)
    web.run_app(
        application,
        host="127.0.0.1",
        port=int(port),
        ssl_context=tls,
        access_log=None,
        keepalive_timeout=120,
        print=None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
