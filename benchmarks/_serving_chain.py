"""A chain of node processes on loopback, and what clients see of it."""

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from plait.cli.demo import memory_cap_bytes
from plait.cli.local_network import LocalNetwork, NodePlan, is_ready, local_network
from plait.sdk import AsyncClient
from plait.types import ModelSpec

_SERVE_S = 180.0
KV_TOKENS = 6_144


@dataclass(slots=True)
class Answer:
    """When a request was sent, and when each of its tokens came; seconds of one clock."""

    sent_s: float
    times: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.times[0] - self.sent_s

    def gaps_s(self, begin_s: float, end_s: float) -> list[float]:
        """Between tokens, of those that came within a window."""
        return [
            b - a for a, b in zip(self.times, self.times[1:], strict=False) if begin_s < b <= end_s
        ]


class Chain:
    """Nodes of which none holds the model alone, one thread each."""

    def __init__(self, stack: ExitStack, network: LocalNetwork, spec: ModelSpec) -> None:
        self._stack = stack
        self.network = network
        self.spec = spec
        profile = network.profile
        self._client = AsyncClient(
            profile.address, profile.api_key, profile.ca_pem, timeout_s=_SERVE_S
        )

    @classmethod
    def start(cls, spec: ModelSpec, *, num_nodes: int, chunks_prompts: bool = True) -> "Chain":
        """Start all processes and wait until the model is served. Blocks the event loop."""
        with ExitStack() as stack:
            home = Path(tempfile.mkdtemp(prefix="plait-bench-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            options = ("--kv-tokens", str(KV_TOKENS), "--weights", "fp32")
            network = stack.enter_context(
                local_network(home=home, model=spec.model_id, num_nodes=num_nodes, options=options)
            )
            memory_bytes = memory_cap_bytes(spec, num_nodes, kv_tokens=KV_TOKENS)
            for number in range(1, num_nodes + 1):
                network.start_node(
                    NodePlan(
                        name=f"node {number}",
                        memory_bytes=memory_bytes,
                        options=() if chunks_prompts else ("--whole-prompts",),
                    )
                )
            network.wait(is_ready, timeout_s=_SERVE_S, what=f"serving {spec.model_id}")
            chain = cls(ExitStack(), network, spec)
            chain._stack = stack.pop_all()
        return chain

    def prompt(self, rng: Random, num_tokens: int) -> list[int]:
        """Tokens that no other prompt begins with."""
        return [rng.randrange(100, self.spec.vocab_size) for _ in range(num_tokens)]

    async def ask(
        self, prompt: list[int], num_tokens: int, *, answer: Answer | None = None
    ) -> Answer:
        """One greedy request to its end; `answer` may be watched meanwhile."""
        answer = answer if answer is not None else Answer(0.0)
        answer.sent_s = time.perf_counter()
        stream = self._client.stream(
            prompt,
            model=self.spec.model_id,
            max_tokens=num_tokens,
            temperature=0.0,
            ignore_eos=True,
            draft_tokens=0,
        )
        async with stream:
            async for delta in stream:
                answer.times += [time.perf_counter()] * len(delta.token_ids)
        return answer

    def num_broken(self) -> int:
        """Chains that broke under requests so far."""
        return self.network.view().counters.routes_broken

    async def close(self) -> None:
        await self._client.close()
        self._stack.close()
