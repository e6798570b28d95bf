"""A rotation of the root, as people with a kubeconfig see it and ask for it. No key is ever read here."""

from supervisor_middleware.errors import InvalidInput, Unavailable
from supervisor_middleware.model.canonical import ParsedJson, parse
from supervisor_middleware.pki.rotation_requests import Request
from supervisor_middleware.sources import cluster_bodies as bodies
from supervisor_middleware.sources.cluster_api import ClusterApi, Form, NotFound
from supervisor_middleware.sources.cluster_authority import CA_SECRET, ROTATE
from supervisor_middleware.sources.cluster_kinds import CONFIG_MAPS, SECRETS, core_path


async def rotation_status(api: ClusterApi, *, namespace: str) -> ParsedJson:
    """Where the rotation stands, as the operator in `namespace` last said.

    Raises:
        InvalidInput: no operator said so there.
        Unavailable: the API server is, or one may not look.
    """
    path = core_path(CONFIG_MAPS, namespace=namespace, name=bodies.TRUST_BUNDLE)
    try:
        metadata = (await api.get(path, form=Form.METADATA))["metadata"]
        status: ParsedJson = parse((metadata.get("annotations") or {})[bodies.ROTATION_STATUS])
    except NotFound:
        raise InvalidInput(f"no operator runs in namespace {namespace}: it publishes no trust bundle there") from None
    except (KeyError, ValueError):
        raise InvalidInput(f"the operator in namespace {namespace} says nothing of its root (yet)") from None
    return status


async def request_rotation(api: ClusterApi, request: Request, *, namespace: str) -> None:
    """Ask the operator in `namespace`; whoever leads looks every few seconds.

    Raises:
        InvalidInput: there is no root of identities there.
        Unavailable: the API server is, or one may not ask.
    """
    path = core_path(SECRETS, namespace=namespace, name=CA_SECRET)
    try:
        # Of a Secret that is patched the API server sends all, unless it is asked for less.
        await api.merge(path, {"metadata": {"annotations": {ROTATE: request.identifier}}}, form=Form.METADATA)
    except NotFound:
        raise Unavailable(f"Secret {namespace}/{CA_SECRET} is missing") from None
