"""What people type, and what it means."""

from pathlib import Path

import pytest

from plait.errors import ModelError
from plait.models import default_id, resolve
from plait.models.naming import split_hub_name
from plait.types import ModelSource, SourceKind


def test_catalogue() -> None:
    source = resolve("smollm2-135m-instruct")
    assert source == ModelSource(kind=SourceKind.CATALOGUE, name="smollm2-135m-instruct")
    assert default_id(source) == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", None),
        ("org/name@main", "org/name", "main"),
        ("org/name@refs/pr/3", "org/name", "refs/pr/3"),
        ("org/name/file-Q4_K_M.gguf", "org/name/file-Q4_K_M.gguf", None),
        ("org/name/deep/er/file.gguf@v1.0", "org/name/deep/er/file.gguf", "v1.0"),
    ],
)
def test_hub(text: str, name: str, revision: str | None) -> None:
    source = resolve(text)
    assert source == ModelSource(kind=SourceKind.HUB, name=name, revision=revision)


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "Model-1.5B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    source = resolve("org/Model-1.5B")
    assert source == ModelSource(kind=SourceKind.PATH, name=str(tmp_path / "org" / "Model-1.5B"))
    assert default_id(source) == "Model-1.5B"
    (tmp_path / "m.Q4_1.gguf").touch()
    assert default_id(resolve("./m.Q4_1.gguf")) == "m.Q4_1"


@pytest.mark.parametrize("text", ["", "nosuch", "a/b/c", "org/../name", "x" * 5000, "a b/c", "@"])
def test_unknown_names_say_what_is_known(text: str) -> None:
    with pytest.raises(ModelError, match="Known by name: smollm2-135m-instruct") as caught:
        resolve(text)
    assert caught.value.code == "model_not_found"


def test_a_near_miss_is_answered_with_the_name() -> None:
    with pytest.raises(ModelError, match="Did you mean smollm2-135m-instruct"):
        resolve("smollm2-135m")


@pytest.mark.parametrize("text", ["/no/such/folder", "./nothing", "missing.gguf"])
def test_missing_paths(text: str) -> None:
    with pytest.raises(ModelError, match="no folder or file"):
        resolve(text)


def test_hub_names_from_the_wire_are_checked_again() -> None:
    assert split_hub_name("org/name/a/b.gguf") == ("org/name", "a/b.gguf")
    for name in ("name", "../../etc", "org/name/../../x.gguf", "/etc/passwd", "org/name@x"):
        with pytest.raises(ModelError):
            split_hub_name(name)
