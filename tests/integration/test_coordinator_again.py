"""A coordinator that is started again on the same folder: what it still knows."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.events import SessionsRecalled
from coordinator.main import coordinator
from coordinator.shell.journal import read_entries
from node.agent.enrol import enrol
from tests.integration.test_coordinator import config_for, scripted_node
from tests.kit.tiny_model import write_tiny_model
from tests.kit.wait import until


@pytest.mark.slow
async def test_a_network_outlives_its_coordinators_process(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    tokens = (tmp_path / "join" / "a.token",)
    config = config_for(tmp_path, is_mqtt_enabled=False, token_files=tokens)
    async with coordinator(config) as first:
        key = (config.state_dir / "admin.key").read_text()
        token = tokens[0].read_text()
        assert first.client_key is not None
    async with coordinator(config) as second:
        assert second.network_id == first.network_id
        assert (config.state_dir / "admin.key").read_text() == key
        assert second.client_key is None
        assert tokens[0].read_text() == token
        credentials = await enrol(second.public_address, token, tmp_path / "node", "s")
        assert credentials.network_id == first.network_id
    assert (config.state_dir / "admin.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_how_long_nodes_stay_outlives_the_coordinator_but_its_stop_is_no_leaving(
    tmp_path: Path,
) -> None:
    write_tiny_model(tmp_path / "tiny")
    token = tmp_path / "join" / "a.token"
    config = config_for(tmp_path, is_mqtt_enabled=False, token_files=(token,))
    async with AsyncExitStack() as stack:
        news = await stack.enter_async_context(coordinator(config))
        async with scripted_node(news, tmp_path / "leaves") as gone:
            await until(lambda: gone.span is not None, timeout_s=20, what="a plan")
        news = replace(news, join_command=f"--token {token.read_text().strip()}")
        async with scripted_node(news, tmp_path / "stays") as stays:
            await until(lambda: stays.span is not None, timeout_s=20, what="a plan")
            await stack.aclose()
            assert not stays.evicted
    async with coordinator(config):
        pass
    told = [event for _, event in read_entries(config.state_dir / "journal")]
    assert isinstance(told[0], SessionsRecalled)
    (known,) = told[0].nodes
    assert known.node_id == gone.credentials.node_id
    assert len(known.sessions_ms) == 1
