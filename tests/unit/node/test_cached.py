"""What a node remembers of the weights on its disk."""

from pathlib import Path

from node.agent.cached import FILE, CachedLayers
from plait.models.records import hub_folder
from plait.types import CachedSpan, HeldSpan, LayerSpan, ModelId, ModelSource, SourceKind
from tests.unit.scheduler.pools import tiny_model

TINY = ModelId("tiny")
HUB = ModelSource(kind=SourceKind.HUB, name="org/tiny")


def held(start: int, end: int) -> HeldSpan:
    return HeldSpan(
        model_id=TINY,
        span=LayerSpan(start, end),
        allocation_epoch=1,
        digest="d",
        weight_bytes=1,
        read_bytes=1,
        kv_tokens_max=1,
    )


def has(start: int, end: int) -> CachedSpan:
    return CachedSpan(model_id=TINY, span=LayerSpan(start, end), digest="d")


def test_spans_of_a_hubs_model_are_remembered_until_their_folder_is_gone(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "models", HUB.name)
    folder.mkdir(parents=True)
    layers = CachedLayers(tmp_path, tmp_path / "models")
    assert layers.spans() == ()
    for span in (held(0, 5), held(3, 9), held(20, 22), held(0, 5)):
        layers.keep(span, tiny_model(), HUB)
    assert CachedLayers(tmp_path, tmp_path / "models").spans() == (has(0, 9), has(20, 22))
    folder.rmdir()
    assert layers.spans() == ()


def test_of_a_model_that_is_here_as_a_whole_all_layers_are(tmp_path: Path) -> None:
    source = ModelSource(kind=SourceKind.PATH, name=str(tmp_path))
    layers = CachedLayers(tmp_path, tmp_path / "models")
    layers.keep(held(3, 9), tiny_model(), source)
    assert layers.spans() == (has(0, 30),)


def test_a_damaged_memory_is_forgotten_and_a_full_disk_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('[{"model_id": "tiny", "start": 5, "end": 2}]')
    assert CachedLayers(tmp_path, tmp_path).spans() == ()
    nowhere = CachedLayers(tmp_path / "missing", tmp_path)
    nowhere.keep(held(0, 5), tiny_model(), ModelSource(kind=SourceKind.PATH, name=str(tmp_path)))
    assert nowhere.spans() == (has(0, 30),)
