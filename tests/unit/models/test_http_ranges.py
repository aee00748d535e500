"""Retries: bounded, spaced, and told by the server when to come back."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.errors import ModelError, WeightsError
from plait.models.http_ranges import NUM_TRIES, RangeClient, RemoteFile
from tests.unit.models.hub_server import HubServer, serve, sha256

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    (tmp_path / "w.safetensors").write_bytes(CONTENT)
    with serve(HubServer("org/tiny", tmp_path)) as server:
        yield server


@pytest.fixture
def sleeps() -> list[float]:
    return []


@pytest.fixture
def client(sleeps: list[float]) -> Iterator[RangeClient]:
    client = RangeClient(sleep=sleeps.append, jitter=random.Random(1))
    yield client
    client.close()


def remote(hub: HubServer, url: str | None = None) -> RemoteFile:
    return RemoteFile(
        url=url or f"{hub.url}/org/tiny/resolve/{hub.commit}/w.safetensors",
        label="org/tiny/w.safetensors",
        size_bytes=len(CONTENT),
        commit=hub.commit,
        content_id=sha256(hub.folder / "w.safetensors"),
    )


def test_a_range(hub: HubServer, client: RangeClient, sleeps: list[float]) -> None:
    assert b"".join(client.stream(remote(hub), 100, 700)) == CONTENT[100:700]
    assert hub.ranges == [("w.safetensors", 100, 700)]
    assert sleeps == []


def test_breaks_that_bring_something_do_not_use_up_the_tries(
    hub: HubServer, client: RangeClient, sleeps: list[float]
) -> None:
    hub.faults[:] = ["cut"] * (NUM_TRIES + 2)
    assert b"".join(client.stream(remote(hub), 0, len(CONTENT))) == CONTENT
    assert len(sleeps) == NUM_TRIES + 2


def test_the_server_says_when_to_come_back(
    hub: HubServer, client: RangeClient, sleeps: list[float]
) -> None:
    hub.faults[:] = [429, 503]
    assert b"".join(client.stream(remote(hub), 0, 9)) == CONTENT[:9]
    assert sleeps == [0.0, 0.0]


def test_gives_up_after_five_tries_in_vain(
    hub: HubServer, client: RangeClient, sleeps: list[float]
) -> None:
    nobody = remote(hub, "http://127.0.0.1:9/x")
    with pytest.raises(WeightsError, match="could not be fetched") as caught:
        list(client.stream(nobody, 0, 9))
    assert caught.value.code == "weights_unavailable"
    assert len(sleeps) == NUM_TRIES - 1
    assert sleeps == sorted(sleeps)
    assert 0.5 <= sleeps[0] <= 1.0


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_only_what_may_pass_is_tried_again(
    hub: HubServer, client: RangeClient, sleeps: list[float], status: int
) -> None:
    hub.faults[:] = [status]
    if status == 500:
        assert b"".join(client.stream(remote(hub), 0, 9)) == CONTENT[:9]
    else:
        with pytest.raises(ModelError):
            list(client.stream(remote(hub), 0, 9))
        assert sleeps == []


def test_a_whole_file_may_come_without_ranges(hub: HubServer, client: RangeClient) -> None:
    hub.faults[:] = ["whole"]
    assert b"".join(client.stream(remote(hub), 0, len(CONTENT))) == CONTENT
    hub.faults[:] = ["whole"]
    with pytest.raises(WeightsError, match="does not serve ranges"):
        list(client.stream(remote(hub), 0, 9))
