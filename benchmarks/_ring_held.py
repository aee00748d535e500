"""The simulator's word on a real three-node ring, held against what clients see."""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks._ring_forecast import PromptFit, chain_nodes, fit_prompts, forecast, step_ms
from coordinator.core.view import NetworkView
from plait.cli.demo import memory_cap_bytes
from plait.cli.local_network import LocalNetwork, NodePlan, is_ready, local_network
from plait.models import load_spec, pull, resolve
from plait.sdk import AsyncClient
from plait.types import ModelSpec

MODEL: Final = "smollm2-135m-instruct"
NUM_NODES: Final = 3
NUM_REQUESTS: Final = (1, 4)
SERVE_S: Final = 180.0
LOOK_S: Final = 0.4
PROMPT: Final = [
    1,
    4093,
    198,
    22045,
    288,
    253,
    28,
    3056,
    338,
    597,
    253,
    5356,
    5646,
    11173,
    3365,
] * 4
OTHER_PROMPTS: Final = (PROMPT[:15], PROMPT * 2)
"""Of lone requests by which predictions are calibrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Prediction and truth for so many requests at once."""

    num_requests: int
    tokens_per_s: float
    predicted_tokens_per_s: float
    ttft_s: float
    predicted_ttft_s: float

    @property
    def rate_error(self) -> float:
        """Share by which the prediction is off."""
        return self.predicted_tokens_per_s / self.tokens_per_s - 1.0

    @property
    def ttft_error(self) -> float:
        """Share by which the prediction is off."""
        return self.predicted_ttft_s / self.ttft_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How much slower (above 1) nodes are now than when they measured themselves: their steps by
    their own reports, their prompts by lone requests of other lengths than those predicted."""

    steps: dict[str, float]
    prompts: PromptFit


def hold_against_ring(*, rounds: int, new_tokens: int) -> tuple[list[Held], Calibration]:
    """Medians over interleaved rounds, and what the predictions were calibrated with."""
    spec = load_spec(pull(resolve(MODEL)))
    with _network(spec) as network:
        return asyncio.run(_hold(network, spec, rounds=rounds, new_tokens=new_tokens))


@contextmanager
def _network(spec: ModelSpec) -> Iterator[LocalNetwork]:
    """Nodes start one by one, so that each measures itself alone."""
    home = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    try:
        options = ("--kv-tokens", "2048", "--wire-dtype", "float32", "--weights", "fp32")
        options += ("--no-mqtt",)
        with local_network(
            home=home, model=spec.model_id, num_nodes=NUM_NODES, options=options
        ) as network:
            for number in range(1, NUM_NODES + 1):
                network.start_node(
                    NodePlan(
                        name=f"node {number}",
                        memory_bytes=memory_cap_bytes(spec, NUM_NODES),
                        num_threads=1,
                    )
                )
                network.wait(
                    lambda view, n=number: _num_measured(view) >= n,  # type: ignore[misc]
                    timeout_s=SERVE_S,
                    what=f"{number} nodes that measured themselves",
                )
            network.wait(is_ready, timeout_s=SERVE_S, what=f"serving {spec.model_id}")
            yield network
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _num_measured(view: NetworkView) -> int:
    return sum(node.decode_layer_ms > 0.0 for node in view.nodes)


async def _hold(
    network: LocalNetwork, spec: ModelSpec, *, rounds: int, new_tokens: int
) -> tuple[list[Held], Calibration]:
    profile = network.profile
    client = AsyncClient(profile.address, profile.api_key, profile.ca_pem, timeout_s=SERVE_S)
    try:
        await _ask(client, spec, PROMPT, new_tokens)  # connections, caches
        others: dict[int, list[float]] = {len(prompt): [] for prompt in OTHER_PROMPTS}
        factors: dict[str, list[float]] = {}
        rates: dict[int, list[float]] = {n: [] for n in NUM_REQUESTS}
        ttfts: dict[int, list[float]] = {n: [] for n in NUM_REQUESTS}
        for _ in range(rounds):
            for prompt in OTHER_PROMPTS:
                started = time.perf_counter()
                first_s = (await _ask(client, spec, prompt, 2))[0]
                others[len(prompt)].append(first_s - started)
            for count in NUM_REQUESTS:
                looking = count == 1
                seen = asyncio.create_task(_watch(network, spec)) if looking else None
                rate, ttft_s = await _burst(client, spec, count, new_tokens)
                rates[count].append(rate)
                ttfts[count].append(ttft_s)
                if seen is not None:
                    seen.cancel()
                    for node_id, factor in (await _of(seen)).items():
                        factors.setdefault(node_id, []).append(factor)
    finally:
        await client.close()
    view = network.view()
    now = {node_id: statistics.median(values) for node_id, values in factors.items()}
    seen_s = {tokens: statistics.median(ttfts) for tokens, ttfts in others.items()}
    prompts = fit_prompts(view, spec, now, seen_s)
    held = []
    for count in NUM_REQUESTS:
        outcomes = forecast(
            view,
            spec,
            now,
            prompts,
            num_requests=count,
            prompt_tokens=len(PROMPT),
            new_tokens=new_tokens,
        )
        first_s = min(o.first_s or 0.0 for o in outcomes)
        last_s = max(o.last_s for o in outcomes)
        held.append(
            Held(
                num_requests=count,
                tokens_per_s=statistics.median(rates[count]),
                predicted_tokens_per_s=count * (new_tokens - 1) / (last_s - first_s),
                ttft_s=statistics.median(ttfts[count]),
                predicted_ttft_s=statistics.median(o.ttft_s or 0.0 for o in outcomes),
            )
        )
    return held, Calibration(steps=now, prompts=prompts)


async def _burst(
    client: AsyncClient, spec: ModelSpec, count: int, new_tokens: int
) -> tuple[float, float]:
    """Tokens/s from the first token of any to the last of all, and the median TTFT."""
    started = time.perf_counter()
    answers = await asyncio.gather(*(_ask(client, spec, PROMPT, new_tokens) for _ in range(count)))
    first_s, last_s = min(a[0] for a in answers), max(a[-1] for a in answers)
    ttft_s = statistics.median(a[0] - started for a in answers)
    return count * (new_tokens - 1) / (last_s - first_s), ttft_s


async def _ask(
    client: AsyncClient, spec: ModelSpec, prompt: list[int], new_tokens: int
) -> list[float]:
    """When each token came."""
    times: list[float] = []
    stream = client.stream(
        prompt,
        model=spec.model_id,
        max_tokens=new_tokens,
        temperature=0.0,
        ignore_eos=True,
        draft_tokens=0,
    )
    async with stream:
        async for delta in stream:
            times += [time.perf_counter()] * len(delta.token_ids)
    return times


_Seen = dict[str, list[float]]


async def _watch(network: LocalNetwork, spec: ModelSpec) -> _Seen:
    """What nodes report of their steps, until cancelled."""
    seen: _Seen = {}
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            view = await asyncio.to_thread(network.view)
            for node in chain_nodes(view):
                if node.stage_ms > 0.0 and node.num_requests == 1:
                    seen.setdefault(node.node_id, []).append(node.stage_ms / step_ms(node, spec))
    except asyncio.CancelledError:
        return seen


async def _of(task: "asyncio.Task[_Seen]") -> dict[str, float]:
    """The last report of each: earlier ones still remember the requests before."""
    return {node_id: values[-1] for node_id, values in (await task).items()}
