"""A ring whose every link is the network emulator's: what neighbours dial is a proxy."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.cli.demo import memory_cap_bytes
from plait.cli.local_network import LOOPBACK, LocalNetwork, NodePlan, is_ready, local_network
from plait.sdk import AsyncClient
from plait.sdk.requests import Prompt
from plait.types import GuessTotals, ModelSpec
from tests.kit.proxy import Proxy
from tests.kit.proxy_pacing import Conditions
from tests.kit.proxy_thread import ProxyThread
from tests.kit.tools import free_port

_SERVE_S: Final = 240.0
_KV_TOKENS: Final = "2048"


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: its ids, when each came, and when it was asked; seconds of one clock."""

    token_ids: list[int]
    times_s: list[float]
    asked_s: float

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.asked_s


class FarRing:
    """Real node processes, of which none holds the model alone, with a proxy before each.

    Neighbours keep one stream between them, whoever dialled it, so one proxy a node puts its
    conditions on every hop: `up` is towards the node that was dialled, `down` back.
    """

    def __init__(
        self, stack: ExitStack, network: LocalNetwork, links: ProxyThread, proxies: list[Proxy]
    ) -> None:
        self._stack = stack
        self._links = links
        self._network = network
        self.proxies = proxies
        profile = network.profile
        self._client = AsyncClient(
            profile.address, profile.api_key, profile.ca_pem, timeout_s=_SERVE_S
        )

    @classmethod
    def start(
        cls,
        spec: ModelSpec,
        *,
        num_nodes: int,
        wire_dtype: str,
        weights: str = "fp16",
        draft_model: str = "",
        draft_bytes: int = 0,
    ) -> "FarRing":
        """All processes, on links without delay, once the model is served; with a draft model,
        every node has one. Blocks."""
        with ExitStack() as stack:
            home = Path(tempfile.mkdtemp(prefix="plait-far-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            links = stack.enter_context(ProxyThread())
            coded = ("--wire-dtype", wire_dtype, "--weights", weights)
            options = ("--kv-tokens", _KV_TOKENS, *coded, "--no-mqtt")
            network = stack.enter_context(
                local_network(home=home, model=spec.model_id, num_nodes=num_nodes, options=options)
            )
            proxies: list[Proxy] = []
            cap_bytes = memory_cap_bytes(spec, num_nodes)
            drafting: tuple[str, ...] = ()
            if draft_model:
                drafting = ("--draft-model", draft_model, "--kv-tokens", _KV_TOKENS)
                cap_bytes = None if cap_bytes is None else cap_bytes + draft_bytes
            for number in range(1, num_nodes + 1):
                port = free_port()
                proxies.append(links.open(port))
                network.start_node(
                    NodePlan(
                        name=f"node {number}",
                        memory_bytes=cap_bytes,
                        listen=f"{LOOPBACK}:{port}",
                        advertise=proxies[-1].address,
                        options=drafting,
                    )
                )
            network.wait(is_ready, timeout_s=_SERVE_S, what=f"serving {spec.model_id}")
            ring = cls(ExitStack(), network, links, proxies)
            ring._stack = stack.pop_all()
        return ring

    def set_links(self, conditions: Conditions) -> None:
        """From now on, both ways of every link."""
        for proxy in self.proxies:
            self._links.do(lambda proxy=proxy: self._set(proxy, conditions))  # type: ignore[misc]

    @property
    def num_bytes(self) -> int:
        """Carried between nodes so far, both ways."""
        return sum(proxy.up_bytes + proxy.down_bytes for proxy in self.proxies)

    def guesses(self) -> GuessTotals:
        """Of all nodes so far, as they tell with their heartbeats."""
        nodes = [node.guesses for node in self._network.view().nodes]
        return GuessTotals(
            trips=sum(each.trips for each in nodes),
            guessed=sum(each.guessed for each in nodes),
            accepted=sum(each.accepted for each in nodes),
            guessed_by_model=sum(each.guessed_by_model for each in nodes),
            accepted_by_model=sum(each.accepted_by_model for each in nodes),
        )

    def way_bytes(self) -> dict[int, int]:
        """Carried so far by each direction of each connection between nodes."""
        ways = [
            way
            for proxy in self.proxies
            for connection in proxy.connections
            for way in (connection.up, connection.down)
        ]
        return {id(way): way.num_bytes for way in ways}

    async def ask(
        self,
        prompts: Sequence[Prompt],
        num_tokens: int,
        *,
        apart_s: float = 0.0,
        draft_tokens: int | None = 0,
        temperature: float = 0.0,
    ) -> list[Answer]:
        """All at once, or each a little after the one before it; without guesses, or with so many
        to a token (None: as many as pay)."""
        asked = (
            self._ask(prompt, num_tokens, index * apart_s, draft_tokens, temperature)
            for index, prompt in enumerate(prompts)
        )
        return list(await asyncio.gather(*asked))

    async def close(self) -> None:
        await self._client.close()
        self._stack.close()

    async def _ask(
        self,
        prompt: Prompt,
        num_tokens: int,
        after_s: float,
        draft_tokens: int | None,
        temperature: float,
    ) -> Answer:
        await asyncio.sleep(after_s)
        answer = Answer([], [], time.perf_counter())
        stream = self._client.stream(
            prompt,
            max_tokens=num_tokens,
            temperature=temperature,
            seed=1,
            ignore_eos=True,
            draft_tokens=draft_tokens,
        )
        async with stream:
            async for delta in stream:
                answer.token_ids.extend(delta.token_ids)
                answer.times_s.extend([time.perf_counter()] * len(delta.token_ids))
        if len(stream.route) != len(self.proxies):
            raise RuntimeError(f"the ring should have {len(self.proxies)} stages: {stream.route}")
        return answer

    @staticmethod
    def _set(proxy: Proxy, conditions: Conditions) -> None:
        proxy.up.conditions = conditions
        proxy.down.conditions = conditions


def together_per_s(answers: Sequence[Answer]) -> float:
    """Tokens per second of all, from when every one has begun until the first has ended."""
    begin_s = max(answer.times_s[0] for answer in answers)
    end_s = min(answer.times_s[-1] for answer in answers)
    num_timed = sum(begin_s < at_s <= end_s for a in answers for at_s in a.times_s)
    return num_timed / (end_s - begin_s)
