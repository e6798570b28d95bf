"""The two dialects' generated classes and the enum numbers they share. Used by the codec modules only.

`Any` stands for either generated module: the classes used through it have the same names and fields in both, which
`tests/contract/test_wire.py` proves from the descriptors.
"""

from collections.abc import Mapping
from typing import Any, Final

from supervisor_middleware.model.evaluation import Decision, ExistingHeader
from supervisor_middleware.model.manifest import Dialect, Operation, Phase
from supervisor_middleware.wire.gen import openshell_middleware_v1_pb2 as rfc0009
from supervisor_middleware.wire.gen import released_pb2 as released

MESSAGES: Final[Mapping[Dialect, Any]] = {Dialect.RFC0009: rfc0009, Dialect.RELEASED: released}

# Proto3 enums are open: a peer may send any number. What these tables lack is unknown, hence invalid.
OPERATIONS: Final[Mapping[int, Operation]] = {
    rfc0009.SUPERVISOR_MIDDLEWARE_OPERATION_HTTP_REQUEST: Operation.HTTP_REQUEST,
    rfc0009.SUPERVISOR_MIDDLEWARE_OPERATION_WEBSOCKET_MESSAGE: Operation.WEBSOCKET_MESSAGE,
}
PHASES: Final[Mapping[int, Phase]] = {
    rfc0009.SUPERVISOR_MIDDLEWARE_PHASE_PRE_CREDENTIALS: Phase.PRE_CREDENTIALS,
    rfc0009.SUPERVISOR_MIDDLEWARE_PHASE_PRE_RETURN: Phase.PRE_RETURN,
}
DECISIONS: Final[Mapping[int, Decision]] = {
    rfc0009.DECISION_ALLOW: Decision.ALLOW,
    rfc0009.DECISION_DENY: Decision.DENY,
}
EXISTING_HEADER_ACTIONS: Final[Mapping[int, ExistingHeader]] = {
    rfc0009.EXISTING_HEADER_ACTION_APPEND: ExistingHeader.APPEND,
    rfc0009.EXISTING_HEADER_ACTION_OVERWRITE: ExistingHeader.OVERWRITE,
    rfc0009.EXISTING_HEADER_ACTION_SKIP: ExistingHeader.SKIP,
}

OPERATION_NUMBERS: Final = {operation: number for number, operation in OPERATIONS.items()}
PHASE_NUMBERS: Final = {phase: number for number, phase in PHASES.items()}
DECISION_NUMBERS: Final = {decision: number for number, decision in DECISIONS.items()}
EXISTING_HEADER_ACTION_NUMBERS: Final = {action: number for number, action in EXISTING_HEADER_ACTIONS.items()}
