import pytest

from supervisor_middleware.model.evaluation import Header
from supervisor_middleware.supervisor.http_request import Framing, UnmatchableHost, encode_value, parse_head

Raw = tuple[tuple[str, bytes], ...]


def lines(*more: tuple[str, bytes], method: bytes = b"POST", authority: bytes = b"api.example.com") -> Raw:
    return ((":authority", authority), (":path", b"/x?q=1&r"), (":method", method), (":scheme", b"http"), *more)


def framing_of(*more: tuple[str, bytes], method: bytes = b"POST") -> Framing:
    return parse_head(lines(*more, method=method), end_of_stream=False).framing


@pytest.mark.parametrize(
    ("authority", "scheme", "host", "port"),
    [
        (b"api.example.com", b"http", "api.example.com", 80),
        (b"API.example.com.", b"https", "api.example.com", 443),
        (b"api.example.com:8080", b"https", "api.example.com", 8080),
        (b"api.example.com:", b"http", "api.example.com", 80),
        (b"[2001:DB8::1]:8443", b"http", "[2001:db8::1]", 8443),
        (b"[2001:db8::1]", b"http", "[2001:db8::1]", 80),
        (b"10.0.0.1:65535", b"http", "10.0.0.1", 65535),
        (b"[::1]", b"http", "[::1]", 80),
    ],
)
def test_the_target_is_where_the_request_goes(authority: bytes, scheme: bytes, host: str, port: int) -> None:
    raw = tuple((k, scheme if k == ":scheme" else v) for k, v in lines(authority=authority))
    target = parse_head(raw, end_of_stream=True).target
    assert (target.host, target.port, target.scheme) == (host, port, scheme.decode())
    assert (target.path, target.query, target.method) == ("/x", "q=1&r", "POST")


@pytest.mark.parametrize(
    "authority",
    [
        b"",
        b"a b",
        b"user@api.example.com",
        b"a.com,b.com",
        b"a..com",
        b"a.com:65536",
        b"a.com:x",
        b"\xc3\xa4.com",
        b"[::1",
        b"a.com:0",
        b"2130706433",
        b"127.000.000.001",
        b"0.0.0.0",
        b"[::]",
        b"[::ffff:127.0.0.1]",
        b"[::ffff:7f00:1]",
        b"[::127.0.0.1]",
        b"[::ffff:0:127.0.0.1]",
        b"[64:ff9b::7f00:1]",
    ],
)
def test_an_authority_that_no_selector_could_match_is_refused(authority: bytes) -> None:
    with pytest.raises(UnmatchableHost):
        parse_head(lines(authority=authority), end_of_stream=True)


def test_two_authorities_are_refused() -> None:
    with pytest.raises(UnmatchableHost):
        parse_head(lines((":authority", b"other.example")), end_of_stream=True)


def test_a_request_without_pseudo_headers_is_refused() -> None:
    with pytest.raises(UnmatchableHost):
        parse_head((("host", b"api.example.com"),), end_of_stream=True)


def test_headers_keep_order_duplicates_and_bytes() -> None:
    head = parse_head(lines(("X-A", b" 1\t"), ("x-b", b"\xff\xe9"), ("x-a", b"2")), end_of_stream=True)
    assert head.headers == (Header("x-a", "1"), Header("x-b", "\xff\xe9"), Header("x-a", "2"))
    assert [encode_value(h.value) for h in head.headers] == [b"1", b"\xff\xe9", b"2"]


def test_a_value_no_request_can_bring_is_written_as_utf_8() -> None:
    assert encode_value("\u65e5") == b"\xe6\x97\xa5"


def test_the_end_of_the_stream_means_no_body() -> None:
    assert parse_head(lines(("content-length", b"0")), end_of_stream=True).framing is Framing.NONE


def test_a_declared_length_is_read() -> None:
    head = parse_head(lines(("content-length", b"12")), end_of_stream=False)
    assert (head.framing, head.content_length) == (Framing.DECLARED, 12)


@pytest.mark.parametrize(
    "more",
    [
        (),
        (("transfer-encoding", b"chunked"),),
        (("transfer-encoding", b"chunked"), ("content-length", b"1")),
        (("content-length", b"1"), ("content-length", b"2")),
        (("content-length", b"+1"),),
        (("content-length", b"1" * 30),),
        (("content-length", b"\xb2"),),
    ],
)
def test_a_length_in_doubt_is_none(more: Raw) -> None:
    assert framing_of(*more) is Framing.UNDECLARED


UPGRADE = (("connection", b"keep-alive, Upgrade"), ("upgrade", b"websocket"))


def test_an_upgrade_without_a_body_is_a_handshake() -> None:
    assert framing_of(*UPGRADE, method=b"GET") is Framing.HANDSHAKE
    assert framing_of(*UPGRADE, ("content-length", b"0"), method=b"GET") is Framing.HANDSHAKE


@pytest.mark.parametrize("body", [("content-length", b"3"), ("transfer-encoding", b"chunked")])
def test_an_upgrade_with_a_body_is_opaque(body: tuple[str, bytes]) -> None:
    assert framing_of(*UPGRADE, body, method=b"GET") is Framing.OPAQUE
    assert framing_of(*UPGRADE) is Framing.OPAQUE


def test_connect_is_opaque_even_without_an_end() -> None:
    assert framing_of(method=b"CONNECT") is Framing.OPAQUE
    assert parse_head(lines(method=b"CONNECT"), end_of_stream=True).framing is Framing.OPAQUE


def test_an_upgrade_header_that_is_not_nominated_is_no_upgrade() -> None:
    assert framing_of(("upgrade", b"websocket"), method=b"GET") is Framing.UNDECLARED
    assert framing_of(("connection", b"upgrade"), method=b"GET") is Framing.UNDECLARED


def test_no_content_is_in_a_repr() -> None:
    head = parse_head(lines(("x-secret", b"canary")), end_of_stream=True)
    assert "canary" not in repr(head)
    assert "q=1" not in repr(head)
