"""Safetensors become a GGUF of 8 bits, and a network of two stages serves it in these."""

from pathlib import Path

import pytest

from plait.cli.local_network import NodePlan, local_network
from plait.models import in_format, load_spec, open_source, resolve
from plait.models.quantizing import quantize_model
from tests.kit.memory import cap_for_stages
from tests.kit.network import KV_TOKENS, SERVE_S, client_of, num_serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.warm import WarmChildren
from tests.unit.engine.opened_model import chain_logits

pytestmark = pytest.mark.slow
PROMPT = [5, 9, 80, 3]


def test_two_stages_serve_the_files_own_bits(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    path = tmp_path / "tiny-q8.gguf"
    quantize_model(resolve(str(tmp_path / "tiny")), path, "q8_0")
    source = resolve(str(path))
    opened = open_source(source)
    spec = in_format(load_spec(source), "stored", opened)
    opened.close()
    options = ("--kv-tokens", str(KV_TOKENS), "--weights", "stored", "--no-mqtt")
    with local_network(
        home=tmp_path / "home", model=str(path), num_nodes=2, options=options, start=WarmChildren
    ) as network:
        cap = cap_for_stages(spec, 2, KV_TOKENS)
        for number in (1, 2):
            network.start_node(NodePlan(name=f"node {number}", memory_bytes=cap))
        network.wait(lambda view: num_serving(view) == 2, timeout_s=SERVE_S, what="2 serving nodes")
        with client_of(network) as client:
            answer = client.generate(PROMPT, max_tokens=3, temperature=0.0, ignore_eos=True)
    assert len(answer.route) == 2
    ids = list(PROMPT)
    for _ in range(3):
        ids.append(int(chain_logits(source, spec, ids)[-1].argmax()))
    assert list(answer.token_ids) == ids[len(PROMPT) :]
