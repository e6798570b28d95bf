"""gRPC replaces what handshakes are using whenever it is given a configuration, and may crash over it."""

from concurrent.futures import ThreadPoolExecutor

from supervisor_middleware.wire.server_tls import Fetcher, ServerMaterial
from tests.pki.builders import NOW, an_authority

AUTHORITY = an_authority()


def material() -> ServerMaterial:
    issued = AUTHORITY.issue_server(dns_names=("service.example.com",), now=NOW)
    return ServerMaterial(
        certificate_chain_pem=issued.certificate_chain_pem, private_key_pem=issued.private_key_pem.reveal()
    )


def test_nothing_is_given_while_nothing_has_changed() -> None:
    first = material()
    fetcher = Fetcher(first, lambda: first)
    assert [fetcher() for _ in range(3)] == [None, None, None]


def test_what_cannot_be_read_changes_nothing() -> None:
    assert Fetcher(material(), lambda: None)() is None


def test_a_change_is_given_once_however_many_handshakes_ask_at_once() -> None:
    renewed = material()
    fetcher = Fetcher(material(), lambda: renewed)
    with ThreadPoolExecutor(16) as pool:
        given = [answer for answer in pool.map(lambda _: fetcher(), range(64)) if answer is not None]
    assert len(given) == 1


def test_each_renewal_is_given() -> None:
    first, second = material(), material()
    served = [first]
    fetcher = Fetcher(first, lambda: served[0])
    served[0] = second
    assert fetcher() is not None
    served[0] = first
    assert fetcher() is not None
    assert fetcher() is None
