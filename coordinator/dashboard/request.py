"""One request as HTML: what it took, where it ran and why there, and a receipt. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from coordinator.core.view import ChainView, DecisionView, RequestView
from coordinator.dashboard import figures
from coordinator.dashboard.markup import chip, facts, link, moment, row, section, table, text
from coordinator.dashboard.paging import address
from coordinator.dashboard.requests import OUTCOME_TONES, state_chip
from coordinator.dashboard.snapshot import Snapshot
from coordinator.ports import PastRequest

CHAIN_HEADS: Final = (
    ("Chain", ""),
    ("Price", "num"),
    ("Wait", "num"),
    ("Prompt", "num"),
    ("Decode", "num"),
    ("Hops", "num"),
    ("Verdict", ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a waterfall: from `start_ms` on for `length_ms`; `label` is HTML."""

    label: str
    start_ms: float
    length_ms: float
    tone: str
    note: str = ""


def draw_request(snapshot: Snapshot, request: RequestView, key_name: str) -> str:
    """All that is known of a request that is open or ended lately."""
    return (
        _outcome(request, key_name)
        + section("Where the time went", waterfall(_phases(request)))
        + _trip(snapshot, request)
        + _decisions(request, snapshot.names)
        + receipt(_receipt(request, snapshot.names))
    )


def draw_past_request(request: PastRequest, key_name: str) -> str:
    """What the store keeps of one that ended long ago."""
    ttft_ms = request.ttft_ms or 0.0
    bars = [
        Bar(label="First token", start_ms=0, length_ms=ttft_ms, tone="busy"),
        Bar(label="Tokens", start_ms=ttft_ms, length_ms=request.total_ms - ttft_ms, tone="ok"),
    ]
    tone = OUTCOME_TONES.get(request.finish_reason, "calm")
    named = (
        ("Outcome", chip(request.finish_reason or "ended", tone)),
        ("Model", text(request.model_id)),
        ("Key", text(key_name or request.key_id)),
        ("Tokens", f"{request.prompt_tokens} in, {request.generated_tokens} out"),
        ("Chains", str(request.num_attempts)),
        ("Ended", moment(request.finished_unix_ms)),
        ("Why", text(request.reason) or figures.DASH),
    )
    note = "Its route is not kept this long: the last thousand requests have theirs."
    return (
        section("Outcome", facts(named), description=note)
        + section("Where the time went", waterfall(bars))
        + receipt({"receipt": "plait", **asdict(request)})
    )


def waterfall(bars: list[Bar]) -> str:
    """Bars under each other on one scale."""
    end_ms = max((bar.start_ms + bar.length_ms for bar in bars), default=0.0)
    if end_ms <= 0:
        return '<p class="empty">Nothing has been measured yet.</p>'
    rows = "".join(
        f'<li><span class="fall-label">{bar.label}</span><span class="fall-track">'
        f'<span class="fall-bar fall-{bar.tone}" style="margin-left:'
        f"{100 * bar.start_ms / end_ms:.2f}%;"
        f'width:max(2px,{100 * bar.length_ms / end_ms:.2f}%)"></span></span>'
        f'<span class="fall-time">{figures.milliseconds(bar.length_ms)}'
        f"{f' <span>{text(bar.note)}</span>' if bar.note else ''}</span></li>"
        for bar in bars
    )
    return f'<ol class="fall">{rows}</ol>'


def receipt(content: Mapping[str, object]) -> str:
    """What was served, by whom and for whom, to keep; nobody's words are in it."""
    drawn = text(json.dumps(content, indent=1, ensure_ascii=False))
    copy = '<button type="button" class="btn btn-quiet" data-copy="#receipt">Copy</button>'
    body = (
        '<pre class="receipt" id="receipt" tabindex="0" role="region" '
        f'aria-label="Receipt as JSON">{drawn}</pre>'
    )
    return section("Receipt", body, aside=copy)


def _outcome(request: RequestView, key_name: str) -> str:
    speed = figures.per_second(request.tokens_per_s) if request.tokens_per_s > 0 else figures.DASH
    prompt = f"{figures.count(request.prompt_tokens)} tokens"
    if request.cached_tokens:
        prompt += f", {figures.count(request.cached_tokens)} from earlier requests"
    named = (
        ("State", state_chip(request)),
        ("Model", text(request.model_id)),
        ("Key", text(key_name or request.key_id) or figures.DASH),
        ("Prompt", prompt),
        (
            "Answer",
            f"{figures.count(request.num_generated)} of at most "
            f"{figures.count(request.max_new_tokens)} tokens",
        ),
        ("First token", figures.milliseconds(request.ttft_ms)),
        ("Tokens/s", speed),
        ("In all", figures.milliseconds(request.total_ms or request.age_ms)),
        ("Chains", str(max(1, request.epoch))),
        ("Why", text(request.reason) or figures.DASH),
    )
    return section("Outcome", facts(named))


def _phases(request: RequestView) -> list[Bar]:
    """Waiting, the prompt, the tokens; one bar more for every chain that it had to leave."""
    end_ms = request.total_ms if request.total_ms is not None else request.age_ms
    starts = [d.at_ms for d in request.decisions if d.verdict == "now"]
    first_ms = min(starts[0] if starts else 0, end_ms)
    bars = [Bar(label="Waits for a chain", start_ms=0, length_ms=first_ms, tone="warn")]
    until_ms = request.ttft_ms if request.ttft_ms is not None else end_ms
    bars.append(
        Bar(
            label="Opens the chain, runs the prompt",
            start_ms=first_ms,
            length_ms=max(0, until_ms - first_ms),
            tone="busy",
        )
    )
    if request.ttft_ms is not None:
        note = f"{request.num_generated} tokens"
        bars.append(
            Bar(
                label="Tokens",
                start_ms=request.ttft_ms,
                length_ms=end_ms - request.ttft_ms,
                tone="ok",
                note=note,
            )
        )
    for at_ms in starts[1:]:
        bars.append(Bar(label="Moves to another chain", start_ms=at_ms, length_ms=0, tone="bad"))
    return bars


def _trip(snapshot: Snapshot, request: RequestView) -> str:
    """One token's way through the chain, as its nodes measure themselves now."""
    if not request.route:
        return ""
    bars = list(_trip_bars(snapshot, request))
    total_ms = sum(bar.length_ms for bar in bars)
    seen = f"; seen: {1e3 / request.tokens_per_s:.1f} ms" if request.tokens_per_s > 0 else ""
    note = (
        f"{total_ms:.1f} ms a token by what nodes and hops measure of late{seen}. A hop counts "
        "half its round trip."
    )
    return section("One token's way, hop by hop", waterfall(bars), description=note)


def _trip_bars(snapshot: Snapshot, request: RequestView) -> Iterator[Bar]:
    at_ms = 0.0
    previous = ""
    for hop in request.route:
        node = snapshot.by_id.get(hop.node_id)
        rtt_ms = (node.coordinator_rtt_ms if node else 0.0) if not previous else 0.0
        if previous:
            rtt_ms = rtt_between(snapshot, previous, hop.node_id)
        way = "from the coordinator" if not previous else f"from {snapshot.name(previous)}"
        label = f"hop {text(way)}"
        note = "" if rtt_ms > 0 else "not measured"
        yield Bar(label=label, start_ms=at_ms, length_ms=rtt_ms / 2, tone="calm", note=note)
        at_ms += rtt_ms / 2
        stage_ms = (node.stage_ms or node.predicted_stage_ms) if node else 0.0
        name = link(address(f"nodes/{hop.node_id}"), snapshot.name(hop.node_id))
        gone = "" if node else "has left"
        label = f"{name} {figures.layers(hop.span)}"
        yield Bar(label=label, start_ms=at_ms, length_ms=stage_ms, tone="ok", note=gone)
        at_ms += stage_ms
        previous = hop.node_id
    last = snapshot.by_id.get(previous)
    back_ms = last.coordinator_rtt_ms / 2 if last else 0.0
    yield Bar(label="hop to the coordinator", start_ms=at_ms, length_ms=back_ms, tone="calm")


def rtt_between(snapshot: Snapshot, one: str, other: str) -> float:
    """Measured by either; 0: by none."""
    for a, b in ((one, other), (other, one)):
        node = snapshot.by_id.get(a)
        for hop in node.hops if node else ():
            if hop.neighbour_id == b:
                return hop.rtt_ms
    return 0.0


def _decisions(request: RequestView, names: Mapping[str, str]) -> str:
    if not request.decisions:
        return ""
    parts = "".join(_decision(decision, names) for decision in request.decisions)
    return section("Why there", parts)


def _decision(decision: DecisionView, names: Mapping[str, str]) -> str:
    expected = ""
    if decision.ttft_ms is not None and decision.token_ms is not None:
        expected = (
            f" Expected: first token after {decision.ttft_ms:.0f} ms, then one in "
            f"{decision.token_ms:.1f} ms."
        )
    held = f" {decision.prefix_tokens} tokens were in its KV." if decision.prefix_tokens else ""
    head = (
        f'<p class="panel-text">After {figures.milliseconds(decision.at_ms)}: '
        f"{text(decision.why)}.{expected}{held}</p>"
    )
    if not decision.considered:
        return head
    rows = (
        row(" ".join(chain.chain), CHAIN_HEADS, _chain_cells(chain, names))
        for chain in decision.considered
    )
    return head + table("Chains that were priced", CHAIN_HEADS, rows, empty="")


def _chain_cells(chain: ChainView, names: Mapping[str, str]) -> tuple[str, ...]:
    where = f"{names.get(chain.obstacle) or chain.obstacle}: " if chain.obstacle else ""
    prices = (chain.total_ms, chain.wait_ms, chain.prefill_ms, chain.decode_ms, chain.hops_ms)
    return (
        text(" \u2192 ".join(names.get(node_id) or node_id for node_id in chain.chain)),
        *(figures.milliseconds(price) for price in prices),
        text(where + chain.note) or figures.DASH,
    )


def _receipt(request: RequestView, names: Mapping[str, str]) -> dict[str, object]:
    return {
        "receipt": "plait",
        "request_id": request.request_id,
        "model_id": request.model_id,
        "key_id": request.key_id,
        "state": request.state,
        "finish_reason": request.finish_reason,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "generated_tokens": request.num_generated,
        "chains": request.epoch,
        "ttft_ms": request.ttft_ms,
        "total_ms": request.total_ms,
        "route": [
            {
                "node_id": hop.node_id,
                "display_name": names.get(hop.node_id, ""),
                "first_layer": hop.span[0],
                "last_layer": hop.span[1] - 1,
            }
            for hop in request.route
        ],
    }
