"""A folder as a source: what counts, what is skipped, and that nothing broken ever looks like a deletion."""

import asyncio
import base64
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from supervisor_middleware.model.limits import MAX_OBJECT_BYTES
from supervisor_middleware.model.sandbox import NAMESPACE_LABEL
from supervisor_middleware.model.snapshot import BundleKey, Kind, Snapshot
from supervisor_middleware.model.violation import Reason, Subject
from supervisor_middleware.sources.folder import UNDATED, FolderSource, Location

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"


def policy(name: str = "redaction", *, namespace: str | None = "team-a", order: int = 1, extra: str = "") -> str:
    where = "" if namespace is None else f"\n  namespace: {namespace}"
    return textwrap.dedent(
        """\
        apiVersion: middleware.openshell.io/v1alpha1
        kind: SandboxPolicy
        metadata:
          name: {name}{where}
        {extra}
        spec:
          sandboxSelector: {{}}
          networkMiddlewares:
            redact:
              middleware: openshell/regex
              order: {order}
              endpoints: {{include: ["*.example.com"]}}
        """
    ).format(name=name, where=where, order=order, extra=extra or "# nothing")


REGISTRATION = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: SupervisorMiddleware
metadata: {name: acme}
spec:
  grpcEndpoint: https://acme.example.com
  maxBodyBytes: 1024
  tls: {caBundleRef: {kind: KIND, namespace: infra, name: roots, key: ca.crt}}
"""
SANDBOX = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: Sandbox
metadata: {name: coder, namespace: team-a, labels: {app: coder}, annotations: {a: b}}
"""


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content)


async def read(folder: Path) -> Snapshot:
    return await FolderSource([folder]).snapshot()


def names(snapshot: Snapshot) -> list[str]:
    return [s.subject.name for s in (*snapshot.registrations, *snapshot.policies)]


def texts(snapshot: Snapshot) -> list[str]:
    return [f"{v.subject.name}: {v}" for v in snapshot.problems.violations]


# ------------------------------------------------------------------------------------------------------- reading


async def test_every_yaml_and_json_file_is_read_recursively(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one.yml").write_text(policy("one"))
    (tmp_path / "a" / "two.yaml").write_text(policy("two"))
    (tmp_path / "three.json").write_text(
        '{"apiVersion": "middleware.openshell.io/v1alpha1", "kind": "SupervisorMiddleware",'
        ' "metadata": {"name": "three"}, "spec": {}}'
    )
    (tmp_path / "README.md").write_text("{not yaml")
    snapshot = await read(tmp_path)
    assert names(snapshot) == ["three", "one", "two"]
    assert texts(snapshot) == []


async def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.yaml").write_text("{")
    (tmp_path / ".hidden.yaml").write_text("{")
    assert await read(tmp_path) == Snapshot()


async def test_an_empty_folder_is_an_empty_world(tmp_path: Path) -> None:
    assert await read(tmp_path) == Snapshot()


async def test_a_mounted_config_map_is_read_once_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "..2026_01").mkdir()
    (tmp_path / "..2026_01" / "p.yaml").write_text(policy())
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    assert names(await read(tmp_path)) == ["redaction"]


async def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "self.yaml").symlink_to("self.yaml")
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    write(tmp_path, p=policy())
    snapshot = await read(tmp_path)
    assert names(snapshot) == ["redaction"]
    assert len(texts(snapshot)) == 2


async def test_a_pipe_in_the_folder_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert texts(await read(tmp_path)) == [
        f"{tmp_path}/pipe.yaml: cannot be read: is no regular file (check what it is and its permissions)"
    ]


async def test_a_file_may_be_named_itself_whatever_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "policy.txt").write_text(policy())
    assert names(await FolderSource([tmp_path / "policy.txt", tmp_path / "policy.txt"]).snapshot()) == ["redaction"]


async def test_a_list_is_many_objects(tmp_path: Path) -> None:
    items = "".join(textwrap.indent(policy(n), "  ").replace("  apiVersion", "- apiVersion", 1) for n in "ab")
    write(tmp_path, list=f"apiVersion: v1\nkind: List\nitems:\n{items}")
    source = FolderSource([tmp_path])
    assert names(await source.snapshot()) == ["a", "b"]
    subject = Subject(kind="SandboxPolicy", namespace="team-a", name="b")
    location = source.location(subject, "spec.networkMiddlewares.redact.order")
    assert location is not None
    assert (tmp_path / "list.yaml").read_text().splitlines()[location.line - 1].strip() == "order: 1"


async def test_foreign_kinds_are_skipped_and_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        foreign="apiVersion: v1\nkind: Pod\n---\napiVersion: apps/v1\nkind: Deployment\n---\n- a list\n---\ntext\n",
        ours=policy(),
        values="replicas: 2\n",
        unhashable="kind: [SandboxPolicy]\napiVersion: {}\n",
    )
    snapshot = await read(tmp_path)
    assert (names(snapshot), snapshot.skipped, texts(snapshot)) == (["redaction"], 6, [])


async def test_our_kind_in_another_group_is_pointed_out(tmp_path: Path) -> None:
    write(tmp_path, p=policy().replace("openshell.io", "openshel.io"))
    snapshot = await read(tmp_path)
    assert (snapshot.policies, snapshot.skipped, len(snapshot.problems.warnings)) == ((), 1, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (policy().replace("kind: SandboxPolicy", "kind: SandboxPolcy"), "line 2, kind: must be one of"),
        (policy().replace("v1alpha1", "v1"), "line 1, apiVersion: is not a version there is"),
        (policy().replace("apiVersion: middleware.openshell.io/v1alpha1\n", ""), "line 1, apiVersion: is required"),
        (policy("Redaction"), "line 4, metadata.name: must be"),
        (policy(namespace="a.b"), "line 5, metadata.namespace: must be"),
        (policy().replace("name: redaction", "generateName: x"), "line 4, metadata.name: is required"),
        (
            policy().replace("name: redaction", "name: n"),
            "metadata.name: must be a string, and YAML reads it as something else (quote it)",
        ),
        (policy(extra="  annotations: {a: 1}"), "metadata.annotations.a: must be a string (quote it)"),
        (policy(extra="data: 1"), "data: is not a field here (allowed: "),
        (policy().replace("metadata:\n  name: redaction\n  namespace: team-a", "metadata: x"), "must be an object"),
        (SANDBOX.replace("coder, namespace", "Coder, namespace"), "metadata.name: must be"),
        (SANDBOX.replace("{app: coder}", "{app: 1}"), "metadata.labels.app: must be a string"),
    ],
)
async def test_what_is_ours_but_cannot_be_told_is_a_violation_about_the_file(
    tmp_path: Path, content: str, message: str
) -> None:
    write(tmp_path, p=content)
    snapshot = await read(tmp_path)
    (text,) = texts(snapshot)
    assert message in text
    assert text.startswith(f"{tmp_path}/p.yaml: ")
    assert snapshot.policies == ()


async def test_an_object_that_cannot_be_named_is_read_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, p=policy("Redaction").replace("order:", "ordre:"))
    found = texts(await read(tmp_path))
    assert [t.partition(": ")[2].partition(":")[0] for t in found] == [
        "line 12, spec.networkMiddlewares.redact.ordre",
        "line 4, metadata.name",
    ]


async def test_an_object_over_the_limit_is_a_violation_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, p=policy(extra=f"status: {{x: {'y' * (2 * 1024 * 1024)}}}"))
    (violation,) = (await read(tmp_path)).problems.violations
    assert violation.reason is Reason.TOO_LARGE
    assert str(MAX_OBJECT_BYTES) in violation.message


async def test_identities_are_stable_and_defaults_are_those_of_kubectl(tmp_path: Path) -> None:
    write(tmp_path, p=policy(namespace=None))
    (first,), (second,) = (await read(tmp_path)).policies, (await read(tmp_path)).policies
    assert first == second
    assert (first.subject.namespace, first.generation, first.created_at) == ("default", 1, UNDATED)


async def test_uid_and_time_are_taken_where_they_are_given(tmp_path: Path) -> None:
    given = "  uid: 2f1c-77\n  creationTimestamp: 2026-01-02T03:04:05Z"
    write(tmp_path, p=policy(extra=given))
    (stored,) = (await read(tmp_path)).policies
    assert (stored.uid, stored.created_at) == ("2f1c-77", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


@pytest.mark.parametrize("uid", ["../../etc/passwd", "''", "12", "x" * 65])
async def test_a_uid_that_is_none_is_not_taken(tmp_path: Path, uid: str) -> None:
    write(tmp_path, a=policy(extra=f"  uid: {uid}"), b=policy("other"))
    (stored, _) = (await read(tmp_path)).policies
    assert len(stored.uid) == 36


async def test_a_copied_uid_makes_two_objects_not_one(tmp_path: Path) -> None:
    write(tmp_path, a=policy("a", extra="  uid: same"), b=policy("b", extra="  uid: same"))
    assert len({s.uid for s in (await read(tmp_path)).policies}) == 2


async def test_only_our_annotations_are_kept(tmp_path: Path) -> None:
    write(tmp_path, p=policy(extra="  annotations: {middleware.openshell.io/x: v, other/z: w}"))
    (stored,) = (await read(tmp_path)).policies
    assert stored.annotations == {"middleware.openshell.io/x": "v"}


@pytest.mark.parametrize(
    "content",
    [
        SANDBOX,
        SANDBOX.replace("metadata:", "spec:").replace(", annotations: {a: b}", ""),
        "apiVersion: middleware.openshell.io/v1alpha1\nkind: Sandbox\nname: coder\nnamespace: team-a\nlabels: {app: coder}\n",
    ],
)
async def test_a_sandbox_is_a_document(tmp_path: Path, content: str) -> None:
    write(tmp_path, s=content)
    snapshot = await read(tmp_path)
    assert texts(snapshot) == []
    (sandbox,) = snapshot.sandboxes
    assert (sandbox.key, sandbox.labels) == ("team-a/coder", {"app": "coder"})


# ---------------------------------------------------------------------------------------- namespaces and baselines


BASELINE = """\
apiVersion: middleware.openshell.io/v1alpha1
kind: ClusterSandboxPolicy
metadata: {name: platform}
spec: {namespaceSelector: {matchLabels: {tier: prod}}}
"""


def namespace(name: str = "team-a", labels: str = "{tier: prod}") -> str:
    return f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {labels}}}\n"


async def test_a_baseline_is_a_policy_without_a_namespace(tmp_path: Path) -> None:
    write(tmp_path, b=BASELINE, p=policy())
    snapshot = await read(tmp_path)
    assert [p.subject for p in snapshot.policies] == [
        Subject(kind="ClusterSandboxPolicy", name="platform"),
        Subject(kind="SandboxPolicy", namespace="team-a", name="redaction"),
    ]
    assert len({p.uid for p in snapshot.policies}) == 2
    assert texts(snapshot) == []


async def test_namespaces_are_those_described_and_those_named_each_with_its_name_as_a_label(tmp_path: Path) -> None:
    write(
        tmp_path, n=namespace(), bare=namespace("team-b", "null"), s=SANDBOX.replace("team-a", "team-c"), p=policy()
    )
    snapshot = await read(tmp_path)
    assert snapshot.namespaces == {
        "team-a": {"tier": "prod", NAMESPACE_LABEL: "team-a"},
        "team-b": {NAMESPACE_LABEL: "team-b"},
        "team-c": {NAMESPACE_LABEL: "team-c"},
    }
    assert (texts(snapshot), snapshot.skipped) == ([], 0)


async def test_a_namespace_cannot_pass_for_another_by_its_label(tmp_path: Path) -> None:
    write(tmp_path, n=namespace(labels=f"{{{NAMESPACE_LABEL}: infra}}"))
    assert (await read(tmp_path)).namespaces == {"team-a": {NAMESPACE_LABEL: "team-a"}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (namespace("Team_A"), "line 3, metadata.name: must be"),
        (namespace("null"), "line 3, metadata.name: must be"),
        (namespace(labels="[tier]"), "line 3, metadata.labels: must be an object"),
        (namespace(labels="{tier: 1}"), "line 3, metadata.labels.tier: must be a string (quote it)"),
        ("apiVersion: v1\nkind: Namespace\nmetadata: x\n", "line 3, metadata.name: must be"),
    ],
)
async def test_a_namespace_that_is_wrong_is_a_violation(tmp_path: Path, content: str, problem: str) -> None:
    write(tmp_path, n=content)
    snapshot = await read(tmp_path)
    assert [t.partition(".yaml: ")[2][: len(problem)] for t in texts(snapshot)] == [problem]
    assert snapshot.namespaces == {}


async def test_a_namespace_in_a_file_that_breaks_keeps_its_labels(tmp_path: Path) -> None:
    write(tmp_path, n=namespace(), s=SANDBOX)
    source = FolderSource([tmp_path])
    before = (await source.snapshot()).namespaces
    write(tmp_path, n="{")
    during = await source.snapshot()
    assert during.namespaces == before
    assert texts(during)
    (tmp_path / "n.yaml").unlink()
    assert (await source.snapshot()).namespaces == {"team-a": {NAMESPACE_LABEL: "team-a"}}


# ------------------------------------------------------------------------------------------------------- bundles


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ConfigMap", {"data": CERTIFICATE}),
        ("ConfigMap", {"binaryData": base64.b64encode(CERTIFICATE.encode()).decode()}),
        ("Secret", {"data": base64.b64encode(CERTIFICATE.encode()).decode()}),
        ("Secret", {"stringData": CERTIFICATE}),
        ("Secret", {"stringData": CERTIFICATE, "data": base64.b64encode(b"other").decode()}),
    ],
)
async def test_a_referenced_bundle_is_found(tmp_path: Path, kind: str, fields: dict[str, str]) -> None:
    body = "".join(f"{k}:\n  ca.crt: {v!r}\n".replace("'", '"') for k, v in fields.items())
    write(
        tmp_path,
        roots=f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: roots, namespace: infra}}\n{body}",
        other="apiVersion: v1\nkind: Secret\nmetadata: {name: other}\nstringData: {password: hunter2}\n",
        acme=REGISTRATION.replace("KIND", kind),
    )
    snapshot = await read(tmp_path)
    assert snapshot.bundles == {BundleKey(kind, "infra", "roots", "ca.crt"): CERTIFICATE}
    assert snapshot.skipped == 1


async def test_of_a_secret_nothing_but_certificates_is_kept(tmp_path: Path) -> None:
    write(
        tmp_path,
        roots="apiVersion: v1\nkind: Secret\nmetadata: {name: roots, namespace: infra}\nstringData: {ca.crt: hunter2}\n",
        acme=REGISTRATION.replace("KIND", "Secret"),
    )
    assert list((await read(tmp_path)).bundles.values()) == [""]


# ------------------------------------------------------------------------------------------------ last-known-good


async def test_a_broken_file_keeps_giving_what_it_held(tmp_path: Path) -> None:
    write(tmp_path, p=policy("a") + "---\n" + policy("b"), q=policy("c"))
    source = FolderSource([tmp_path])
    before = await source.snapshot()
    write(tmp_path, p=policy("a") + "---\n" + "spec: [broken\n", q=policy("c", order=2))
    during = await source.snapshot()
    assert names(during) == ["a", "b", "c"]
    assert during.policies[1] == before.policies[1]
    assert [v.subject.name for v in during.problems.violations] == [f"{tmp_path}/p.yaml"]
    assert during.policies[2].generation == 2
    write(tmp_path, p=policy("a"))
    after = await source.snapshot()
    assert names(after) == ["a", "c"]
    assert texts(after) == []


async def test_an_edit_beside_a_broken_document_still_counts(tmp_path: Path) -> None:
    write(tmp_path, p=policy("a") + "---\n" + policy("b"))
    source = FolderSource([tmp_path])
    await source.snapshot()
    write(tmp_path, p=policy("a", order=7) + "---\n{\n")
    a, b = (await source.snapshot()).policies
    assert (a.generation, b.generation) == (2, 1)


async def test_good_documents_of_a_file_that_was_never_whole_count(tmp_path: Path) -> None:
    write(tmp_path, p=policy("a") + "---\n{\n---\n" + policy("b"))
    assert names(await read(tmp_path)) == ["a", "b"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_an_unreadable_file_keeps_giving_what_it_held(tmp_path: Path) -> None:
    write(tmp_path, p=policy())
    source = FolderSource([tmp_path])
    await source.snapshot()
    (tmp_path / "p.yaml").chmod(0)
    snapshot = await source.snapshot()
    assert names(snapshot) == ["redaction"]
    assert "Permission denied" in texts(snapshot)[0]


async def test_a_file_that_becomes_unreadable_keeps_giving_what_it_held(tmp_path: Path) -> None:
    write(tmp_path, p=policy())
    source = FolderSource([tmp_path])
    await source.snapshot()
    (tmp_path / "p.yaml").unlink()
    os.mkfifo(tmp_path / "p.yaml")
    snapshot = await source.snapshot()
    assert names(snapshot) == ["redaction"]
    assert "cannot be read" in texts(snapshot)[0]


async def test_a_deleted_file_takes_its_objects_with_it(tmp_path: Path) -> None:
    write(tmp_path, p=policy("a"), q=policy("b"))
    source = FolderSource([tmp_path])
    await source.snapshot()
    (tmp_path / "p.yaml").unlink()
    assert names(await source.snapshot()) == ["b"]


async def test_a_path_that_is_gone_makes_everything_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, p=policy())
    source = FolderSource([folder])
    await source.snapshot()
    folder.rename(tmp_path / "elsewhere")
    snapshot = await source.snapshot()
    assert snapshot.unknown == {kind.value for kind in Kind} - {"PolicyRevision"}
    assert names(snapshot) == ["redaction"]
    assert texts(snapshot) == [f"{folder}: does not exist (create it, or name another)"]
    (tmp_path / "elsewhere").rename(folder)
    assert (await source.snapshot()).unknown == frozenset()


async def test_two_files_with_one_object_are_a_violation_and_the_first_owner_stands(tmp_path: Path) -> None:
    write(tmp_path, m=policy(order=1))
    source = FolderSource([tmp_path])
    await source.snapshot()
    write(tmp_path, a=policy(order=2))
    snapshot = await source.snapshot()
    (stored,) = snapshot.policies
    assert stored.spec["networkMiddlewares"]["redact"]["order"] == 1  # type: ignore[index, call-overload]
    assert texts(snapshot) == [
        f"redaction: is defined 2 times: {tmp_path}/a.yaml:1, {tmp_path}/m.yaml:1 (keep one, or rename the others)"
    ]


async def test_generation_grows_with_the_spec_and_with_nothing_else(tmp_path: Path) -> None:
    source = FolderSource([tmp_path])
    seen = []
    for content in (
        policy(),
        "# comment\n" + policy(),
        policy(order=2),
        policy(order=1),
        policy(extra="  labels: {}"),
    ):
        write(tmp_path, p=content)
        seen.append((await source.snapshot()).policies[0].generation)
    assert seen == [1, 1, 2, 3, 3]


async def test_new_objects_are_dated_when_they_are_first_seen(tmp_path: Path) -> None:
    times = iter(datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 9))
    source = FolderSource([tmp_path], now=lambda: next(times))
    write(tmp_path, a=policy("a"))
    await source.snapshot()
    write(tmp_path, b=policy("b"))
    first, second = (await source.snapshot()).policies
    assert second.created_at - first.created_at == timedelta(days=1)


async def test_fields_have_a_location(tmp_path: Path) -> None:
    write(tmp_path, p="# comment\n---\n" + policy())
    source = FolderSource([tmp_path])
    (stored,) = (await source.snapshot()).policies
    file = f"{tmp_path}/p.yaml"
    assert source.location(stored.subject) == Location(file=file, line=3)
    assert source.location(stored.subject, "spec.networkMiddlewares.redact.order") == Location(file=file, line=14)
    assert source.location(stored.subject, "spec.networkMiddlewares.redact.endpoints.include[7]") == Location(
        file=file, line=15
    )
    assert source.location(replace(stored.subject, name="none")) is None


# ------------------------------------------------------------------------------------------------------ watching


async def test_changes_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    stop = asyncio.Event()
    told = asyncio.Event()

    async def listen() -> None:
        async for _ in FolderSource([folder]).changes(stop):
            told.set()

    async def after(change: Callable[[], object]) -> None:
        told.clear()
        await asyncio.to_thread(change)
        async with asyncio.timeout(10):
            await told.wait()

    def rename_over() -> None:
        (folder / ".p.yaml.swp").write_text(policy(order=3))
        (folder / ".p.yaml.swp").rename(folder / "p.yaml")

    def replace_folder() -> None:
        (folder / "p.yaml").unlink()
        folder.rmdir()
        folder.mkdir()

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0.3)
    await after(lambda: write(folder, p=policy()))
    await after(rename_over)
    await after((folder / "p.yaml").unlink)
    write(folder, p=policy())
    await after(replace_folder)
    await asyncio.sleep(2.5)
    await after(lambda: write(folder, q=policy()))
    stop.set()
    async with asyncio.timeout(5):
        await listener


async def test_watching_ends_at_once_when_told_to(tmp_path: Path) -> None:
    stop = asyncio.Event()

    async def listen() -> None:
        async for _ in FolderSource([tmp_path / "missing"]).changes(stop):
            pass

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    stop.set()
    async with asyncio.timeout(1):
        await listener
