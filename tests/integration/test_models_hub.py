"""The hub over real HTTP on loopback: ranges, caching, resuming, pinning, refusals."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from typer.testing import CliRunner

from plait.cli.model import app
from plait.errors import ModelError, PlaitError, WeightsError
from plait.models import (
    list_pulled,
    load_spec,
    open_source,
    pin,
    prefetch,
    pull,
    remove,
    resolve,
    span_tensor_names,
    tokenizer_source,
    verify,
)
from plait.types import LayerSpan, ModelSource
from tests.unit.models.hub_server import HubServer, only_hub
from tests.unit.models.tiny import TinyModel, tiny_model, values_of, write_folder, write_gguf

pytestmark = pytest.mark.slow

SOURCE = resolve("org/tiny")


@pytest.fixture
def model() -> TinyModel:
    return tiny_model(num_layers=12)


@pytest.fixture
def hub(tmp_path: Path, model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = tmp_path / "hub"
    write_folder(folder, model, num_files=3)
    (folder / "tokenizer.json").write_text("{}")
    with only_hub(folder, tmp_path / "models", monkeypatch) as server:
        yield server


def read_span(source: ModelSource, span: LayerSpan, model: TinyModel) -> int:
    """Prefetch and read a span's tensors, hold them against the model; returns bytes read."""
    opened = open_source(source)
    names = span_tensor_names(opened.spec, span)
    prefetch(opened, names, lambda done, total: None)
    for name in names:
        assert (values_of(opened, name) == model.tensors[name]).all()
    opened.close()
    return opened.read_bytes


def weight_bytes(hub: HubServer) -> int:
    return sum(path.stat().st_size for path in hub.folder.glob("*.safetensors"))


def test_a_node_fetches_its_own_span_and_nothing_else(hub: HubServer, model: TinyModel) -> None:
    read = read_span(SOURCE, LayerSpan(4, 8), model)
    assert read == hub.large_bytes
    wanted = sum(
        model.tensors[name].nbytes for name in span_tensor_names(model.spec, LayerSpan(4, 8))
    )
    headers = sum(
        8 + int.from_bytes(path.read_bytes()[:8], "little")
        for path in hub.folder.glob("*.safetensors")
    )
    assert hub.large_bytes <= wanted + headers + 3 * 16
    assert hub.large_bytes <= 0.45 * weight_bytes(hub)


def test_adjacent_tensors_travel_in_one_request(hub: HubServer, model: TinyModel) -> None:
    write_folder(hub.folder, model, num_files=1)
    (hub.folder / "model.safetensors.index.json").unlink()
    opened = open_source(SOURCE)
    num_before = len(hub.ranges)
    prefetch(opened, sorted(opened.tensor_names()), lambda done, total: None)
    assert len(hub.ranges) == num_before + 1
    opened.close()


def test_progress_rises_to_the_total(hub: HubServer) -> None:
    opened = open_source(SOURCE)
    names = span_tensor_names(opened.spec, opened.spec.whole)
    seen: list[tuple[int, int]] = []
    prefetch(opened, names, lambda done, total: seen.append((done, total)))
    total = sum(opened.stored_bytes(name) for name in names)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    opened.close()


def test_a_restart_fetches_nothing_again(
    hub: HubServer, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_span(SOURCE, LayerSpan(4, 8), model)
    given = hub.large_bytes
    read_span(SOURCE, LayerSpan(4, 8), model)
    read_span(SOURCE, LayerSpan(3, 7), model)
    layer_bytes = sum(
        model.tensors[n].nbytes for n in span_tensor_names(model.spec, LayerSpan(3, 4))
    )
    assert hub.large_bytes == given + layer_bytes
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    num_requests = len(hub.requests)
    read_span(SOURCE, LayerSpan(3, 8), model)
    assert len(hub.requests) == num_requests


def test_two_nodes_of_one_machine_share_what_they_fetch(hub: HubServer, model: TinyModel) -> None:
    source = pin(SOURCE)
    hub.ranges.clear()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: read_span(source, LayerSpan(2, 6), model), range(3)))
    wanted = sum(
        model.tensors[name].nbytes for name in span_tensor_names(model.spec, LayerSpan(2, 6))
    )
    assert hub.large_bytes == wanted


def test_a_hub_that_is_away_does_not_stop_a_restart(
    hub: HubServer, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_span(SOURCE, LayerSpan(4, 8), model)
    tokenizer_source(SOURCE)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    read_span(SOURCE, LayerSpan(4, 8), model)
    assert pin(SOURCE).revision == hub.commit
    assert (tokenizer_source(SOURCE).folder / "tokenizer.json").exists()


@pytest.mark.parametrize("fault", ["cut", 503, 429])
def test_a_broken_fetch_goes_on_where_it_was(
    hub: HubServer, model: TinyModel, fault: int | str
) -> None:
    source = pin(SOURCE)
    before = hub.large_bytes
    hub.faults[:] = [fault]
    read_span(source, LayerSpan(0, 2), model)
    wanted = sum(
        model.tensors[name].nbytes for name in span_tensor_names(model.spec, LayerSpan(0, 2))
    )
    assert hub.large_bytes - before == wanted
    assert not hub.faults


def test_a_fetch_that_died_leaves_a_part_that_is_resumed(hub: HubServer, model: TinyModel) -> None:
    source = pin(SOURCE)
    before = hub.large_bytes
    hub.faults[:] = ["cut", 404]
    with pytest.raises(ModelError):
        read_span(source, LayerSpan(0, 1), model)
    parts = list(Path(os.environ["PLAIT_MODELS"]).rglob("*.part"))
    assert len(parts) == 1
    read_span(source, LayerSpan(0, 1), model)
    names = span_tensor_names(model.spec, LayerSpan(0, 1))
    assert hub.large_bytes - before == sum(model.tensors[name].nbytes for name in names)
    assert not list(Path(os.environ["PLAIT_MODELS"]).rglob("*.part"))


def test_damage_on_this_disk_is_noticed_and_fetched_again(hub: HubServer, model: TinyModel) -> None:
    read_span(SOURCE, LayerSpan(1, 2), model)
    pieces = sorted(Path(os.environ["PLAIT_MODELS"]).rglob("*.bin"), key=lambda p: p.stat().st_size)
    content = bytearray(pieces[-1].read_bytes())
    content[7] ^= 1
    pieces[-1].write_bytes(content)
    before = hub.large_bytes
    read_span(SOURCE, LayerSpan(1, 2), model)
    assert hub.large_bytes - before == len(content)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("whole", "does not serve ranges"),
        ("moved", "changed on the hub"),
        ("long", "the server sent bytes"),
        ("gzip", "compresses"),
        (404, "does not have"),
        (403, "HF_TOKEN"),
        (416, "answers 416"),
    ],
)
def test_answers_that_are_refused(hub: HubServer, fault: int | str, said: str) -> None:
    opened = open_source(SOURCE)
    hub.faults[:] = [fault]
    with pytest.raises(ModelError, match=said):
        opened.read("model.norm.weight")
    opened.close()


def test_digest_is_the_same_by_range_and_pulled_and_pins_the_commit(hub: HubServer) -> None:
    by_range = pin(SOURCE)
    assert by_range.revision == hub.commit
    pulled = pull(SOURCE)
    assert pulled == by_range
    assert open_source(pulled).digest == by_range.digest
    with pytest.raises(WeightsError, match="not those the network serves"):
        open_source(replace(pulled, digest="0" * 64))


class TestPull:
    """Whole models."""

    def test_everything_checked_listed_verified_removed(
        self, hub: HubServer, model: TinyModel
    ) -> None:
        seen: list[tuple[str, int, int]] = []
        source = pull(SOURCE, progress=lambda *step: seen.append(step))
        assert seen[-1][1:] == (weight_bytes(hub), weight_bytes(hub))
        given = hub.large_bytes
        assert read_span(source, model.spec.whole, model) >= sum(
            t.nbytes for t in model.tensors.values()
        )
        assert pull(SOURCE) == source
        assert hub.large_bytes == given == weight_bytes(hub)
        listed = list_pulled()
        assert [(m.source, m.is_whole) for m in listed] == [(source, True)]
        assert verify(SOURCE).num_files == 3
        assert tokenizer_source(SOURCE).folder == listed[0].folder
        assert remove(SOURCE) >= weight_bytes(hub)
        assert list_pulled() == []
        with pytest.raises(ModelError, match="not on this machine"):
            verify(SOURCE)

    def test_resumes(self, hub: HubServer, model: TinyModel) -> None:
        hub.faults[:] = ["cut", 404]
        with pytest.raises(ModelError):
            pull(SOURCE)
        cut = hub.large_bytes
        assert 0 < cut < weight_bytes(hub)
        source = pull(SOURCE)
        assert hub.large_bytes == weight_bytes(hub)
        read_span(source, model.spec.whole, model)

    def test_a_damaged_arrival_is_fetched_again(self, hub: HubServer) -> None:
        hub.faults[:] = ["flip"]
        pull(SOURCE)
        assert verify(SOURCE).num_files == 3

    def test_three_damaged_arrivals_are_an_error(self, hub: HubServer) -> None:
        hub.faults[:] = ["flip"] * 3
        with pytest.raises(WeightsError, match="arrived damaged 3 times") as caught:
            pull(SOURCE)
        assert caught.value.code == "weights_corrupt"

    def test_damage_on_disk_is_found_by_verify(self, hub: HubServer) -> None:
        pull(SOURCE)
        path = next(list_pulled()[0].folder.glob("*.safetensors"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(WeightsError, match="is damaged"):
            verify(SOURCE)


class TestGguf:
    """A GGUF inside a repository."""

    @pytest.fixture
    def big(self, hub: HubServer) -> TinyModel:
        model = tiny_model(num_layers=30, vocab_size=20_000)
        write_gguf(hub.folder / "tiny-f32.gguf", model, num_tokens=2000)
        return model

    def test_is_read_by_range(self, hub: HubServer, big: TinyModel) -> None:
        read_span(resolve("org/tiny/tiny-f32.gguf"), LayerSpan(10, 20), big)
        size = (hub.folder / "tiny-f32.gguf").stat().st_size
        assert hub.large_bytes <= 0.45 * size

    def test_tokenizer_needs_the_header_only(self, hub: HubServer, big: TinyModel) -> None:
        files = tokenizer_source(resolve("org/tiny/tiny-f32.gguf"))
        assert files.gguf_file is not None
        reader = gguf.GGUFReader(files.folder / files.gguf_file)
        assert len(reader.fields["tokenizer.ggml.tokens"].data) == 2000
        assert hub.large_bytes <= 2**20

    def test_pulls_whole(self, hub: HubServer, big: TinyModel) -> None:
        source = pull(resolve("org/tiny/tiny-f32.gguf"))
        read_span(source, LayerSpan(0, 1), big)
        size = (hub.folder / "tiny-f32.gguf").stat().st_size
        assert size <= hub.large_bytes <= size + 2**20  # the header was looked at first


class TestRefusals:
    """Clear errors, nothing left behind that misleads."""

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("org/other", "has no repository org/other"),
            ("org/tiny@v9", "no revision 'v9'"),
            ("org/tiny/none.gguf", "no file none.gguf"),
        ],
    )
    def test_unknown(self, hub: HubServer, name: str, said: str) -> None:
        with pytest.raises(ModelError, match=said):
            open_source(resolve(name))

    def test_gated(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.token = "secret"
        with pytest.raises(ModelError, match="HF_TOKEN") as caught:
            open_source(SOURCE)
        assert caught.value.code == "model_forbidden"
        monkeypatch.setenv("HF_TOKEN", "secret")
        open_source(SOURCE).close()
        assert set(hub.cdn_authorizations) == {""}  # another host never sees the token

    def test_pickles_only(self, hub: HubServer) -> None:
        for path in hub.folder.glob("*.safetensors*"):
            path.unlink()
        (hub.folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
        with pytest.raises(WeightsError, match=r"pytorch_model\.bin is refused"):
            open_source(SOURCE)
        assert hub.large_bytes == 0

    def test_file_names_that_leave_the_folder(self, hub: HubServer) -> None:
        hub.extra_names.append("../../evil.json")
        with pytest.raises(WeightsError, match="evil"):
            open_source(SOURCE)

    def test_offline_and_not_here(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        for source in (SOURCE, replace(SOURCE, revision=hub.commit)):
            with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
                open_source(source)
        assert hub.requests == []

    def test_nobody_answers(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(WeightsError, match="could not be asked") as caught:
            open_source(SOURCE)
        assert caught.value.code == "weights_unavailable"


def test_a_mirror_without_sizes_is_asked_file_by_file(hub: HubServer, model: TinyModel) -> None:
    hub.has_metadata = False
    read_span(SOURCE, LayerSpan(4, 6), model)
    assert hub.large_bytes <= 0.45 * weight_bytes(hub)


def test_the_spec_needs_no_weights(hub: HubServer, model: TinyModel) -> None:
    assert load_spec(SOURCE, model_id=model.spec.model_id) == model.spec
    assert hub.large_bytes == 0


def test_the_command_pulls_lists_and_removes(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def plait_model(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        return f"{done.output}{done.exception}"

    assert "pulled layers 4-7 of org/tiny" in plait_model("pull", "org/tiny", "--layers", "4-7")
    assert "some layers" in plait_model("list")
    for layers in ("4-99", "7-4", "x", "-1"):
        said = plait_model("pull", "org/tiny", "--layers", layers)
        assert "--layers is FIRST-LAST, from 0-0 to 0-11" in said
    assert "pulled org/tiny at cccccccccccc" in plait_model("pull", "org/tiny")
    assert "intact org/tiny: 3 files" in plait_model("verify")
    path = next(list_pulled()[0].folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert "is damaged" in plait_model("verify")
    assert "Aborted" in plait_model("rm", "org/tiny")
    assert "removed org/tiny" in plait_model("rm", "-y", "org/tiny")
    assert "not on this machine" in plait_model("rm", "-y", "org/tiny")


def test_every_failure_is_one_of_ours(hub: HubServer) -> None:
    steps: list[Callable[[], object]] = [
        lambda: open_source(resolve("org/tiny@" + "e" * 40)),
        lambda: pull(resolve("no/thing")),
        lambda: remove(SOURCE),
    ]
    for step in steps:
        with pytest.raises(PlaitError):
            step()
