"""The third contender: node processes on loopback, asked through the client SDK."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks._contenders import Decoded
from plait.cli.demo import memory_cap_bytes
from plait.cli.local_network import LocalNetwork, NodePlan, is_ready, local_network
from plait.sdk import AsyncClient
from plait.types import ModelSpec

_SERVE_S = 180.0
_KV_TOKENS = "2048"


class RingContender:
    """A coordinator and nodes of which none holds the model alone: mutual TLS, tickets, fp32."""

    def __init__(
        self, stack: ExitStack, network: LocalNetwork, spec: ModelSpec, num_nodes: int
    ) -> None:
        self.name = f"plait ring, {num_nodes} nodes"
        self._stack = stack
        self._model = spec.model_id
        self._num_nodes = num_nodes
        profile = network.profile
        self._client = AsyncClient(
            profile.address, profile.api_key, profile.ca_pem, timeout_s=_SERVE_S
        )

    @classmethod
    def start(cls, spec: ModelSpec, *, num_nodes: int, num_threads: int) -> "RingContender":
        """Start all processes and wait until the model is served. Blocks the event loop."""
        with ExitStack() as stack:
            home = Path(tempfile.mkdtemp(prefix="plait-bench-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            options = ("--kv-tokens", _KV_TOKENS, "--wire-dtype", "float32", "--weights", "fp32")
            network = stack.enter_context(
                local_network(home=home, model=spec.model_id, num_nodes=num_nodes, options=options)
            )
            memory_bytes = memory_cap_bytes(spec, num_nodes)
            for number in range(1, num_nodes + 1):
                network.start_node(
                    NodePlan(
                        name=f"node {number}", memory_bytes=memory_bytes, num_threads=num_threads
                    )
                )
            network.wait(is_ready, timeout_s=_SERVE_S, what=f"serving {spec.model_id}")
            ring = cls(ExitStack(), network, spec, num_nodes)
            ring._stack = stack.pop_all()
        return ring

    async def decode(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Decoded:
        """All requests at once; timed until the first of them ends."""
        answers = await asyncio.gather(*(self._ask(list(p), num_tokens) for p in prompts))
        begin_s = max(times[0] for _, times in answers)
        end_s = min(times[-1] for _, times in answers)
        num_timed = sum(begin_s < at_s <= end_s for _, times in answers for at_s in times)
        return Decoded([ids for ids, _ in answers], num_timed, end_s - begin_s)

    async def close(self) -> None:
        await self._client.close()
        self._stack.close()

    async def _ask(self, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """Token ids and when each came."""
        ids: list[int] = []
        times: list[float] = []
        stream = self._client.stream(
            prompt,
            model=self._model,
            max_tokens=num_tokens,
            temperature=0.0,
            ignore_eos=True,
            draft_tokens=0,  # a trip a token, as the others take a step a token
        )
        async with stream:
            async for delta in stream:
                ids += delta.token_ids
                times += [time.perf_counter()] * len(delta.token_ids)
        if len(stream.route) != self._num_nodes:
            raise RuntimeError(f"the ring should have {self._num_nodes} stages: {stream.route}")
        return ids, times
