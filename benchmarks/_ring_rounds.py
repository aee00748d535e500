"""Rounds on a real three-node ring: lone requests to calibrate by, and what is to be predicted.

Every request has a prompt of its own, drawn anew: of a prompt that was asked before nodes still
hold the KV, and nothing of it would run. Kinds of request take turns, so that whoever keeps the
machine busy weighs on all of them.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from grpc import aio

from coordinator.core.view import NetworkView
from plait.cli.demo import memory_cap_bytes
from plait.cli.local_network import LocalNetwork, NodePlan, is_ready, local_network
from plait.errors import DeadlineError
from plait.sdk.requests import GenerateOptions, build_request
from plait.sdk.settings import resolve
from plait.types import ModelSpec, StepTotals
from plait.wire.v1 import gateway_pb2_grpc

NUM_NODES: Final = 3
SERVE_S: Final = 180.0
LOOK_S: Final = 0.2
NUM_REQUESTS: Final = (1, 4)
PROMPT_TOKENS: Final = 60
LONE_TOKENS: Final = (15, 120)
"""Prompts of the requests that calibrate."""
LONE_NEW_TOKENS: Final = 16

Steps = Mapping[str, tuple[StepTotals, StepTotals]]
"""By node: what it had done before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """When the chain of one request was open and when its tokens came, in seconds since all of
    its kind were asked."""

    routed_s: float
    times_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.times_s[0]

    @property
    def tpot_s(self) -> float:
        """After the first."""
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """`lone` has an answer by prompt tokens, `steps` what nodes did for these; `bursts` the answers
    to so many requests at once. `load` is how many processes wanted a core (a minute's average)."""

    lone: Mapping[int, Answer]
    steps: Steps
    bursts: Mapping[int, Sequence[Answer]]
    load: float


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """From the first token of any to the last of all."""
    first_s = min(answer.times_s[0] for answer in answers)
    last_s = max(answer.times_s[-1] for answer in answers)
    return sum(len(answer.times_s) - 1 for answer in answers) / (last_s - first_s)


def ttft_s(answers: Sequence[Answer]) -> float:
    """The median one."""
    return statistics.median(answer.ttft_s for answer in answers)


class Asker:
    """Asks the ring, and reads what its nodes report."""

    def __init__(self, network: LocalNetwork, spec: ModelSpec, *, seed: int) -> None:
        self._network = network
        self._spec = spec
        self._rng = Random(f"prompts {seed}")
        profile = network.profile
        self._settings = resolve(profile.address, profile.api_key, profile.ca_pem)
        self._channel = aio.secure_channel(
            self._settings.address, self._settings.credentials, options=self._settings.options
        )
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def warm_up(self) -> None:
        """Connections, caches, and a step of each kind."""
        await self._at_once(2, PROMPT_TOKENS, 4)

    async def round(self, new_tokens: int) -> Round:
        """Everything once, in an order of its own."""
        lone: dict[int, Answer] = {}
        bursts: dict[int, Sequence[Answer]] = {}
        before = await self._totals(await self._view())
        prompts = list(LONE_TOKENS)
        self._rng.shuffle(prompts)
        for tokens in prompts:
            (lone[tokens],) = await self._at_once(1, tokens, LONE_NEW_TOKENS)
        after = await self._settled(before, len(prompts) * (LONE_NEW_TOKENS - 1))
        counts = list(NUM_REQUESTS)
        self._rng.shuffle(counts)
        for count in counts:
            bursts[count] = await self._at_once(count, PROMPT_TOKENS, new_tokens)
        steps = {node_id: (before[node_id], totals) for node_id, totals in after.items()}
        return Round(lone=lone, steps=steps, bursts=bursts, load=os.getloadavg()[0])

    async def _at_once(self, count: int, tokens: int, new_tokens: int) -> list[Answer]:
        started_s = time.perf_counter()
        prompts = [self._prompt(tokens) for _ in range(count)]
        return await asyncio.gather(*(self._ask(p, new_tokens, started_s) for p in prompts))

    def _prompt(self, tokens: int) -> list[int]:
        return [self._rng.randrange(100, self._spec.vocab_size) for _ in range(tokens)]

    async def _ask(self, prompt: list[int], new_tokens: int, started_s: float) -> Answer:
        """By the protocol itself: the SDK does not tell when a chain was open."""
        options = GenerateOptions(
            model=self._spec.model_id,
            max_tokens=new_tokens,
            temperature=0.0,
            ignore_eos=True,
            draft_tokens=0,
        )
        events = self._stub.Generate(
            build_request(prompt, options), timeout=SERVE_S, metadata=self._settings.metadata
        )
        routed_s, times = 0.0, list[float]()
        async for event in events:
            now_s = time.perf_counter() - started_s
            if event.WhichOneof("event") == "routed":
                routed_s = now_s
            times += [now_s] * len(event.delta.token_ids)
        return Answer(routed_s=routed_s, times_s=tuple(times))

    async def _view(self) -> NetworkView:
        return await asyncio.to_thread(self._network.view)

    async def _totals(self, view: NetworkView) -> dict[str, StepTotals]:
        return {node.node_id: node.steps for node in view.nodes if node.span is not None}

    async def _settled(
        self, before: Mapping[str, StepTotals], decode_rows: int
    ) -> dict[str, StepTotals]:
        """What nodes report once so many decodes are among it. Raises DeadlineError."""
        deadline_s = time.perf_counter() + SERVE_S
        while time.perf_counter() < deadline_s:
            now = await self._totals(await self._view())
            if all(
                now[node_id].decode_rows - then.decode_rows >= decode_rows
                for node_id, then in before.items()
            ):
                return now
            await asyncio.sleep(LOOK_S)
        raise DeadlineError(f"nodes did not report {decode_rows} decodes within {SERVE_S:.0f} s")


@contextmanager
def running_ring(spec: ModelSpec) -> Iterator[LocalNetwork]:
    """Nodes start one by one, so that each measures itself alone."""
    home = Path(tempfile.mkdtemp(prefix="plait-bench-"))
    try:
        exact = ("--wire-dtype", "float32", "--weights", "fp32")
        options = ("--kv-tokens", "2048", *exact, "--no-mqtt")
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
