"""The kopf edge without a cluster: what it logs is ours, and holds no bodies."""

import logging

import kopf
from structlog.testing import capture_logs

from supervisor_middleware.handlers import _NoMemories, _quiet_kopf, _settings


def test_what_kopf_logs_is_cut_before_anything_like_a_body() -> None:
    _quiet_kopf()
    _quiet_kopf()
    logger = logging.getLogger("kopf.anything")
    with capture_logs() as logs:
        logger.warning("Ignoring an unsupported event type: {'object': 'canary'}\nmore canary")
        logger.error("failed: %s", {"object": "canary"})
        logger.warning("x" * 1000)
        logger.info("not of interest")
    assert [entry["event"] for entry in logs] == [
        "kopf: Ignoring an unsupported event type: ",
        "kopf: failed: ",
        "kopf: " + "x" * 200,
    ]


def test_kopf_posts_nothing_and_only_labelled_pods_are_watched() -> None:
    settings = _settings()
    assert not settings.posting.enabled
    assert settings.process.ultimate_exiting_timeout is None
    pods = kopf.Resource("", "v1", "pods")
    policies = kopf.Resource("middleware.openshell.io", "v1alpha1", "sandboxpolicies")
    assert settings.watching.label_selectors.collect(pods) == ["middleware.openshell.io/sandbox"]
    assert settings.watching.label_selectors.collect(policies) == []
    assert settings.watching.label_selectors.collect(kopf.Resource("", "v1", "namespaces")) == []


async def test_kopf_remembers_nothing_of_the_objects_it_saw() -> None:
    memories = _NoMemories()
    body = kopf.RawBody(metadata={"uid": "u-1"})
    assert await memories.recall(body, noticed_by_listing=True, memobase=kopf.Memo()) is not None
    assert list(memories.iter_all_memories()) == []
    await memories.forget(body)
