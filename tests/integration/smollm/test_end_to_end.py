"""Real weights, real processes: three nodes answer as one model does, and let go when asked."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from coordinator.core import events as ev
from coordinator.gateway.tokens import Tokenizer
from coordinator.shell.journal import read_entries
from plait.cli.local_network import LocalNetwork
from plait.types import FinishReason, LayerSpan, NodeId
from tests.kit import leaving_client
from tests.kit.network import client_of, now_ms, smollm
from tests.kit.reference import greedy_ids, next_of_each
from tests.kit.wait import until_sync

pytestmark = pytest.mark.slow
NUM_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "1, 2, 3, 5, 8,",
    "Photosynthesis is the process by which",
)
FREE_MS = 1_000


def test_three_nodes_draw_the_tokens_that_transformers_draws(
    smollm_network: LocalNetwork, tokenizer: Tokenizer, reference: LlamaForCausalLM
) -> None:
    prompts = [tokenizer.encode(prompt, with_special=True) for prompt in PROMPTS]
    with client_of(smollm_network) as client, ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(
            pool.map(
                lambda ids: client.generate(
                    ids, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True
                ),
                prompts,
            )
        )
    drawn = [list(answer.token_ids) for answer in answers]
    assert [len(ids) for ids in drawn] == [NUM_TOKENS] * len(prompts)
    for prompt, ids in zip(prompts, drawn, strict=True):
        assert next_of_each(reference, prompt, ids) == ids
    assert greedy_ids(reference, prompts[0], NUM_TOKENS) == drawn[0]
    for answer in answers:
        assert len(answer.route) == 3
        assert answer.num_attempts == 1
        assert answer.finish_reason is FinishReason.LENGTH


def test_no_node_holds_the_whole_model_and_together_they_hold_it_once(
    smollm_network: LocalNetwork,
) -> None:
    _, spec = smollm()
    view = smollm_network.view()
    spans = sorted(LayerSpan(*node.span) for node in view.nodes if node.span is not None)
    assert [spans[0].start, spans[-1].end] == [0, spec.num_layers]
    assert all(left.end == right.start for left, right in itertools.pairwise(spans))
    assert max(len(span) for span in spans) < spec.num_layers
    assert all(node.weight_bytes <= node.memory_bytes for node in view.nodes)


def test_a_client_killed_mid_stream_frees_the_kv_on_every_node_within_a_second(
    smollm_network: LocalNetwork, tmp_path: Path
) -> None:
    profile = smollm_network.profile
    ca = tmp_path / "ca.pem"
    ca.write_text(profile.ca_pem)
    command = [sys.executable, "-m", leaving_client.__name__]
    arguments = [profile.address, profile.api_key, str(ca), "400"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"streaming\n"
        until_sync(
            lambda: min(n.kv_tokens_reserved for n in smollm_network.view().nodes) > 0,
            what="KV on every node",
        )
        began_ms = now_ms()
        until_sync(
            lambda: _reported_kv(smollm_network, since_ms=began_ms).keys() == _ids(smollm_network),
            what="a heartbeat of every node",
        )
        held = _reported_kv(smollm_network, since_ms=began_ms)
        assert min(held.values()) > 0, "the nodes hold KV while the client listens"
        client.kill()
        killed_ms = now_ms()
    until_sync(
        lambda: all(n.kv_tokens_reserved == 0 for n in smollm_network.view().nodes),
        what="the coordinator's own count at 0",
        timeout_s=FREE_MS / 1000 + 0.5,
    )
    # Nodes report once a second: what each one says after the second is over must be 0.
    after_ms = killed_ms + FREE_MS
    until_sync(
        lambda: _reported_kv(smollm_network, since_ms=after_ms).keys() == _ids(smollm_network),
        what="a heartbeat of every node",
    )
    assert set(_reported_kv(smollm_network, since_ms=after_ms).values()) == {0}


def _ids(network: LocalNetwork) -> set[NodeId]:
    return {NodeId(node.node_id) for node in network.view().nodes}


def _reported_kv(network: LocalNetwork, *, since_ms: int) -> dict[NodeId, int]:
    """What each node itself first said about its KV after a moment, from the journal."""
    journal = network.home / "coordinator-home" / "coordinator" / "journal"
    said: dict[NodeId, int] = {}
    for stamp_ms, event in read_entries(journal):
        if stamp_ms > since_ms and isinstance(event, ev.NodeReported):
            said.setdefault(event.node_id, event.load.kv_tokens_reserved)
    return said
