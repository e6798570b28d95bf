"""What both ends of a supervisor's connection are set to: it must fit."""

from supervisor_middleware.apps.control_plane import bounds, server_options
from supervisor_middleware.distribution.tls import ClientCertificate
from supervisor_middleware.distribution.watch import Patience
from supervisor_middleware.model.limits import MAX_STREAM_MESSAGE_BYTES
from supervisor_middleware.supervisor.operator_channel import OPTIONS

OPERATOR, SUPERVISOR = dict(server_options(ClientCertificate.REQUIRED)), dict(OPTIONS)


def test_both_ends_find_out_that_the_other_is_gone_without_a_word_and_neither_pings_too_often() -> None:
    for end in (OPERATOR, SUPERVISOR):
        assert 0 < int(end["grpc.keepalive_time_ms"]) <= 300_000
        assert 0 < int(end["grpc.keepalive_timeout_ms"]) <= 20_000
        assert 0 < int(end["grpc.http2.ping_timeout_ms"]) <= 20_000
    # Else gRPC ends the connection of whoever is only careful, or a quiet stream is not pinged at all.
    assert int(SUPERVISOR["grpc.keepalive_time_ms"]) > int(OPERATOR["grpc.http2.min_ping_interval_without_data_ms"])
    assert SUPERVISOR["grpc.http2.max_pings_without_data"] == 0


def test_what_one_end_may_send_the_other_takes() -> None:
    assert OPERATOR["grpc.max_send_message_length"] == MAX_STREAM_MESSAGE_BYTES
    assert SUPERVISOR["grpc.max_receive_message_length"] == MAX_STREAM_MESSAGE_BYTES


def test_a_connection_outlasts_its_streams_and_is_proven_anew_in_the_end() -> None:
    age = int(OPERATOR["grpc.max_connection_age_ms"]) / 1000
    assert Patience().age.total_seconds() < age <= 24 * 3600


def test_on_either_port_silent_connections_end_and_there_is_room_beside_those_that_may_be_silent() -> None:
    for kind in ClientCertificate:
        options = dict(server_options(kind))
        assert 0 < options["grpc.max_connection_idle_ms"] <= 600_000
        assert bounds(kind).of_one <= bounds(kind).of_all < options["grpc.max_allowed_incoming_connections"]
