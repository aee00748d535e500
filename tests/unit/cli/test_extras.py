"""What is missing is said before anything is done, and as one can install it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.extras import EXTRAS, needs
from plait.errors import ConfigError

RUN = CliRunner()
ROOT = Path(__file__).parents[3]
MODULES = {
    "nvidia_ml_py": "pynvml",
    "opentelemetry_exporter_otlp_proto_http": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry_sdk": "opentelemetry.sdk",
}


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    def modules(extra: str) -> set[str]:
        found: set[str] = set()
        for requirement in project["optional-dependencies"][extra]:
            if "; sys_platform" in requirement:  # what a system lacks is done without
                continue
            own = re.fullmatch(r"plait\[(.+)\]", requirement)
            name = re.split(r"[\[<>=]", requirement)[0].replace("-", "_")
            name = MODULES.get(name, name)
            found |= modules(own[1]) if own else {name}
        return found

    assert {extra: modules(extra) for extra in EXTRAS} == {e: set(m) for e, m in EXTRAS.items()}


def test_a_missing_package_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs("models", "node", "coordinator")
    monkeypatch.setitem(sys.modules, "torch", None)
    needs("coordinator")
    with pytest.raises(ConfigError, match=r"torch, not installed.* pip install '\.\[node\]'"):
        needs("node")
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # what it is a part of
    with pytest.raises(ConfigError, match=r"opentelemetry\.sdk, .* pip install '\.\[otel\]'"):
        needs("otel")


def test_tracing_without_its_extra_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    words, url = ["coordinator", "--model", "no-such-model"], "http://127.0.0.1:4318"
    by_flag = RUN.invoke(app, [*words, "--otlp-endpoint", url])
    by_variable = RUN.invoke(app, words, env={"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    for refused in (by_flag, by_variable):
        assert isinstance(refused.exception, ConfigError)
        assert refused.exception.code == "not_installed"
        assert "pip install '.[coordinator,otel]'" in refused.exception.message


def test_nobody_is_sent_to_a_registry_for_plait() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    texts += [path for path in ROOT.glob("examples/**/*") if path.is_file()]
    for role in ("plait", "node", "coordinator", "scheduler", "scripts"):
        texts += (ROOT / role).rglob("*.py")
    assert len(texts) > 200
    wrong = re.compile(r"pip install[^`\n]*['\" ]plait(\[|[`'\" \n]|$)")
    assert [str(text) for text in texts if wrong.search(text.read_text("utf-8"))] == []
