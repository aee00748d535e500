"""A node's draft model <-> protobuf."""

from typing import Final

from plait.types import DraftHealth, DraftState
from plait.wire.v1 import control_pb2

CHARS_MAX: Final = 300
"""Of its name, and of why it does not guess."""


def draft_to_proto(draft: DraftHealth | None) -> control_pb2.DraftModel | None:
    if draft is None:
        return None
    return control_pb2.DraftModel(
        model_id=draft.model_id,
        state=draft.state,
        why=draft.why[:CHARS_MAX],
        num_failed=draft.num_failed,
    )


def draft_from_proto(message: control_pb2.Heartbeat) -> DraftHealth | None:
    """None where there is none, or one in a state that a newer version knows."""
    draft = message.draft
    if not message.HasField("draft") or draft.state not in tuple(DraftState):
        return None
    return DraftHealth(
        model_id=draft.model_id[:CHARS_MAX],
        state=DraftState(draft.state),
        why=draft.why[:CHARS_MAX],
        num_failed=draft.num_failed,
    )
