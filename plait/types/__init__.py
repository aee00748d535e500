"""The vocabulary: frozen dataclasses, enums and ids. Standard library only.

Owns the nouns that more than one package uses. Must never import anything of plait's but errors.
"""

from plait.types.cached import CachedSpan, merged
from plait.types.guesses import DraftHealth, DraftState, GuessTotals
from plait.types.ids import ModelId, NodeId, PipelineId, RequestId
from plait.types.model import (
    Activation,
    Architecture,
    DType,
    KvDtype,
    ModelSource,
    ModelSpec,
    RopeScaling,
    SourceKind,
    WeightFormat,
)
from plait.types.node import (
    HeldSpan,
    LayerTiming,
    NodeLoad,
    NodeProfile,
    StepTotals,
    TensorGroup,
)
from plait.types.route import PREEMPTED, Reason, Route, Stage
from plait.types.sampling import (
    CONSTRAINT_CHARS_MAX,
    DRAFTS_MAX,
    LOGIT_BIAS_MAX,
    Constraint,
    ConstraintKind,
    FinishReason,
    SamplingParams,
    TokenLogprob,
)
from plait.types.span import LayerSpan, missing_spans
from plait.types.ticket import RouteTicket, TicketStage

__all__ = [
    "CONSTRAINT_CHARS_MAX",
    "DRAFTS_MAX",
    "LOGIT_BIAS_MAX",
    "PREEMPTED",
    "Activation",
    "Architecture",
    "CachedSpan",
    "Constraint",
    "ConstraintKind",
    "DType",
    "DraftHealth",
    "DraftState",
    "FinishReason",
    "GuessTotals",
    "HeldSpan",
    "KvDtype",
    "LayerSpan",
    "LayerTiming",
    "ModelId",
    "ModelSource",
    "ModelSpec",
    "NodeId",
    "NodeLoad",
    "NodeProfile",
    "PipelineId",
    "Reason",
    "RequestId",
    "RopeScaling",
    "Route",
    "RouteTicket",
    "SamplingParams",
    "SourceKind",
    "Stage",
    "StepTotals",
    "TensorGroup",
    "TicketStage",
    "TokenLogprob",
    "WeightFormat",
    "merged",
    "missing_spans",
]
