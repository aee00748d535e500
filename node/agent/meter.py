"""The node's moving figures, for heartbeats and telemetry."""

from typing import Final

from node.agent.figures import ServingFigures
from node.agent.weight_counts import WeightCounts
from node.core import NodeCore
from node.draft_port import DraftHost
from node.ports import EngineHost, Links, LinkStats
from plait.types import DraftHealth, DraftState, NodeLoad
from plait.wire.telemetry import TelemetryReading

_DOES: Final = {
    DraftState.IDLE: "rests: the first layers are with others",
    DraftState.GUESSING: "guesses",
    DraftState.REFUSED: "refused",
    DraftState.LOST: "lost",
}


class NodeMeter:
    """Reads the core, the engine and the links; changes nothing. A `node.ports.TelemetrySource`."""

    def __init__(
        self,
        core: NodeCore,
        engine: EngineHost,
        links: Links,
        weights: WeightCounts | None = None,
        drafter: DraftHost | None = None,
    ) -> None:
        self._drafter = drafter
        self._weights = weights if weights is not None else WeightCounts()
        self._core = core
        self._engine = engine
        self._links = links

    def load(self) -> NodeLoad:
        """The moving part of a heartbeat."""
        stats, links = self._engine.stats(), self._links.stats()
        return NodeLoad(
            kv_tokens_reserved=stats.kv_tokens_reserved,
            num_requests=self._core.num_sessions,
            stage_ms=stats.stage_ms,
            tokens_total=stats.tokens_total,
            sent_bytes_total=sum(link.sent_bytes for link in links),
            frames_dropped_total=self._frames_dropped(links),
            queue_tokens=stats.queue_tokens,
            steps=stats.steps,
            weights=self._weights.totals(),
            guesses=self._core.counters.guesses,
            draft=self._draft(),
        )

    def reading(self) -> TelemetryReading:
        stats, links, held = self._engine.stats(), self._links.stats(), self._core.held
        weights = self._weights.totals()
        return TelemetryReading(
            state=self._core.state.value,
            model_id=held.model_id if held is not None else None,
            span=held.span if held is not None else None,
            stage_ms=stats.stage_ms,
            kv_tokens_max=stats.kv_tokens_max,
            kv_tokens_reserved=stats.kv_tokens_reserved,
            num_requests=self._core.num_sessions,
            queue_tokens=stats.queue_tokens,
            tokens_total=stats.tokens_total,
            steps_total=stats.steps_total,
            sent_bytes_total=sum(link.sent_bytes for link in links),
            received_bytes_total=sum(link.received_bytes for link in links),
            frames_dropped_total=self._frames_dropped(links),
            weights_hub_bytes_total=weights.hub_bytes,
            weights_neighbour_bytes_total=weights.neighbour_bytes,
            weights_served_bytes_total=weights.served_bytes,
            weights_rejected_total=weights.rejected_chunks,
            weights_refused_total=weights.refused_requests,
            neighbour_rtt_ms=tuple(
                (link.neighbour_id, link.rtt_ms) for link in links if link.rtt_ms is not None
            ),
        )

    def figures(self, *, sent_bytes: int, received_bytes: int) -> ServingFigures:
        """For the owner's screens; the bytes are those of all streams."""
        stats, held = self._engine.stats(), self._core.held
        return ServingFigures(
            state=self._core.state.value,
            model_id=held.model_id if held is not None else "",
            layers=str(held.span) if held is not None else "",
            num_requests=self._core.num_sessions,
            tokens_total=stats.tokens_total,
            stage_ms=stats.stage_ms,
            kv_tokens_reserved=stats.kv_tokens_reserved,
            kv_tokens_max=stats.kv_tokens_max,
            weight_bytes=held.weight_bytes if held is not None else 0,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            weights=self._weights.line(),
            draft=self._draft_line(),
        )

    def _draft(self) -> DraftHealth | None:
        if self._drafter is None:
            return None
        state, why = self._core.draft_state
        return DraftHealth(
            model_id=self._drafter.model_id,
            state=state,
            why=why,
            num_failed=self._drafter.num_failed,
        )

    def _draft_line(self) -> str:
        """For the owner."""
        draft, guesses = self._draft(), self._core.counters.guesses
        if draft is None:
            return ""
        if draft.why:
            return f"{draft.model_id}: {draft.state}: {draft.why}"
        line = f"{draft.model_id}: {_DOES[draft.state]}"
        if guesses.guessed_by_model:
            line += f", {guesses.accepted_by_model:,} of {guesses.guessed_by_model:,} guesses right"
        return line + (f", {draft.num_failed:,} steps failed" if draft.num_failed else "")

    def _frames_dropped(self, links: tuple[LinkStats, ...]) -> int:
        repeated = sum(link.sequence_errors for link in links)
        return self._core.counters.frames_dropped + repeated
