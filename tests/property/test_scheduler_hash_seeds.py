"""The same input gives the same routes, whatever order sets have in a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from dataclasses import replace
from plait.types import NodeId
from scheduler.selection.candidates import Promise
from scheduler.selection.router import Router
from tests.property.test_scheduler_stitched import HOP_BYTES, SPEC, draw_net
for seed in range(40):
    candidates, links, query = draw_net(seed, 14)
    router = Router(candidates, links, spec=SPEC, hop_bytes=HOP_BYTES)
    print([c.node_ids for c in router.chains.all])
    for at in range(6):
        asked = replace(query, promise=Promise(5e3, 300.0) if at % 2 else None)
        excluded = {NodeId(f"n{i:02d}") for i in range(at)}
        decision = router.route(asked, excluded)
        print(decision and (decision.how, decision.route, decision.total_ms))
        print(router.exact(asked, excluded))
"""


def routes(hash_seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.slow
def test_routes_do_not_depend_on_the_hash_seed() -> None:
    first = routes("0")
    assert first.count("Stage(") > 100
    assert routes("1") == first
    assert routes("2") == first
