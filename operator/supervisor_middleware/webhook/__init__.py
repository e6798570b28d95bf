"""The admission webhook: an aiohttp server over TLS. An edge; the answer is `control/admission`'s.

Every replica serves it. `judging` gathers and decides under one deadline inside the webhook's own timeout, `server`
takes reviews off the wire, `limits` keeps many or large ones from piling up. A review that cannot be judged is
refused (fail closed), never let through.
"""

from supervisor_middleware.webhook.judging import DEADLINE, Webhook
from supervisor_middleware.webhook.limits import Limits
from supervisor_middleware.webhook.server import PATH, Clients, serve

__all__ = ["DEADLINE", "PATH", "Clients", "Limits", "Webhook", "serve"]
