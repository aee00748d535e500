"""A network that exists only to be looked at."""

import dataclasses

from coordinator.core.view import (
    ChainView,
    CountersView,
    DecisionView,
    HopView,
    MeasuredHopView,
    ModelView,
    NetworkView,
    NodeView,
    PlanView,
    RequestView,
)
from tests.kit.stores import MemoryKeys

ADMIN_KEY = "plait-admin-key"
CLIENT_KEY = "plait-client-key"

ADVICE = "One more node with 0.4 GiB closes the gap."
LACK = "layers 10-19 of 30 have no node, 142 MiB are missing. "


def node_view(number: int, span: tuple[int, int], *, state: str = "serving") -> NodeView:
    """A measured node."""
    return NodeView(
        node_id=f"nabcdefgh{number:08d}",
        display_name=("attic-3060", "lab-4090", "dorm-m2", "desk-1080")[number % 4],
        state=state,
        incarnation=1_700_000_000_000 + number,
        model_id="smollm2-135m-instruct",
        span=span,
        span_reason="",
        device_kind="cuda" if number % 2 else "cpu",
        device_name="NVIDIA GeForce RTX 4090" if number % 2 else "Ryzen 7 5800X",
        memory_bytes=(4 + 4 * number) << 30,
        weight_bytes=180 << 20,
        read_bytes=181 << 20,
        compute_dtype="float32",
        decode_layer_ms=0.42 + 0.2 * number,
        prefill_layer_ms_per_token=0.05,
        coordinator_rtt_ms=12.3 + number,
        up_bytes_per_s=3e6,
        down_bytes_per_s=2e7,
        kv_tokens_max=8_192,
        kv_tokens_reserved=700 * number,
        num_requests=number,
        stage_ms=5.1 + number,
        predicted_stage_ms=4.9 + number,
        tokens_total=1_000 * number,
        sent_bytes_total=5_000_000 * number,
        frames_dropped_total=number // 2,
        load_phase="",
        load_done_bytes=0,
        load_total_bytes=0,
        last_error="",
        attached_ms=60_000,
        neighbour_rtt_ms=(("nabcdefgh00000000", 8.4),),
        decode_error_percent=-12.4,
        hops=(
            MeasuredHopView(
                neighbour_id="nabcdefgh00000000",
                rtt_ms=8.4,
                predicted_rtt_ms=24.6,
                bytes_per_s=4e6,
                predicted_bytes_per_s=3e6,
            ),
        ),
    )


DECISION = DecisionView(
    at_ms=42,
    verdict="now",
    why="the cheapest of two chains",
    ttft_ms=150.0,
    token_ms=31.0,
    considered=(
        ChainView(
            chain=tuple(f"nabcdefgh{at:08d}" for at in range(3)),
            total_ms=900.0,
            note="chosen",
            wait_ms=1.0,
            prefill_ms=120.0,
            decode_ms=700.0,
            hops_ms=79.0,
        ),
        ChainView(
            chain=("nabcdefgh00000000",),
            total_ms=None,
            note="its KV is full",
            obstacle="nabcdefgh00000000",
        ),
    ),
    epoch=1,
)


def request_view(number: int, *, state: str = "decode", num_generated: int = 12) -> RequestView:
    """A request over three stages."""
    spans = ((0, 10), (10, 20), (20, 30))
    return RequestView(
        request_id=f"req-{number:04d}",
        model_id="smollm2-135m-instruct",
        key_id="k1",
        state=state,
        epoch=1 + number % 2,
        prompt_tokens=37,
        max_new_tokens=128,
        num_generated=num_generated,
        age_ms=1_000 * number + 800,
        ttft_ms=None if state == "queued" else 184,
        total_ms=None,
        tokens_per_s=0.0 if state == "queued" else 23.4,
        route=()
        if state == "queued"
        else tuple(
            HopView(node_id=f"nabcdefgh{at:08d}", span=span) for at, span in enumerate(spans)
        ),
        decisions=(DECISION,) if state != "queued" else (),
        finish_reason="stop" if state == "finished" else "",
        reason="KV cache is full on every chain" if state == "queued" else "",
    )


def network_view(
    *, tokens: int = 1_234, is_whole: bool = True, num_generated: int = 12
) -> NetworkView:
    """Three or four nodes of a 30-layer model; with layers missing unless `is_whole`."""
    nodes = [
        node_view(0, (0, 10)),
        node_view(1, (10, 20)),
        node_view(2, (20, 30)),
    ]
    replicas = [1] * 30
    if is_whole:
        nodes.append(
            dataclasses.replace(
                node_view(3, (5, 20), state="loading"),
                load_phase="fetching",
                load_done_bytes=90 << 20,
                load_total_bytes=270 << 20,
            )
        )
        replicas[5:20] = [2] * 15
    else:
        nodes[1] = dataclasses.replace(nodes[1], state="gone", span=None, last_error="lease ended")
        replicas[10:20] = [0] * 10
    return NetworkView(
        network_id="0123456789abcdef",
        software_version="0.1.0",
        now_ms=1_000_000,
        nodes=tuple(nodes),
        models=(
            ModelView(
                model_id="smollm2-135m-instruct",
                architecture="llama",
                num_layers=30,
                context_tokens_max=2_048,
                is_ready=is_whole,
                replicas_per_layer=tuple(replicas),
                missing=() if is_whole else ((10, 20),),
                missing_bytes=0 if is_whole else 142 << 20,
                advice="" if is_whole else ADVICE,
                lack="" if is_whole else LACK + ADVICE,
            ),
        ),
        requests=(
            request_view(1, num_generated=num_generated),
            request_view(2, state="queued", num_generated=0),
            request_view(3, state="finished", num_generated=64),
        ),
        num_queued=1,
        plan=PlanView(
            epoch=4,
            solver="HiGHS",
            status="optimal",
            objective_tokens_per_s=41.7,
            bound_tokens_per_s=43.2,
            solve_ms=312,
            warnings=("lab-4090 is unused: it would not shorten the slowest stage.",),
        ),
        counters=CountersView(
            requests_submitted=12,
            requests_finished=9,
            requests_failed=1,
            requests_cancelled=1,
            routes_opened=12,
            routes_broken=1,
            tokens_generated=tokens,
            events_ignored=3,
        ),
    )


class FakeViews:
    """Ten more tokens at every look."""

    def __init__(self, *, is_whole: bool = True) -> None:
        self.num_looks = 0
        self.is_whole = is_whole

    def view(self) -> NetworkView:
        self.num_looks += 1
        return network_view(
            tokens=1_234 + 10 * self.num_looks,
            is_whole=self.is_whole,
            num_generated=12 + 10 * self.num_looks,
        )


def admin_and_client() -> MemoryKeys:
    """An admin's key and a client's key."""
    keys = MemoryKeys()
    keys.add(ADMIN_KEY, "operator", is_admin=True)
    keys.add(CLIENT_KEY, "Ada's notebook")
    return keys
