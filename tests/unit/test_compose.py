"""docker-compose.yml asks for what exists, and for no more rights than it needs."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from coordinator.config import HTTP_PORT
from plait.cli.app import app

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text("utf-8")
FILE: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
CUDA: Final = yaml.safe_load((ROOT / "docker" / "cuda.yml").read_text("utf-8"))
SERVICES: Final[Mapping[str, Mapping[str, object]]] = FILE["services"]
OURS: Final = sorted(set(SERVICES) - {"mosquitto"})


def words(service: Mapping[str, object], key: str = "command") -> list[str]:
    """A list of words, with the defaults of its variables."""
    value = service[key]
    assert isinstance(value, list)
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(word)) for word in value]


def check_words(path: Sequence[str]) -> None:
    """Every flag exists, and the command line can be parsed."""
    command, rest = get_command(app), list(path)
    while rest and isinstance(command, TyperGroup) and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    assert isinstance(command, TyperGroup | TyperCommand)
    known = {name for parameter in command.params for name in parameter.opts}
    flags = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert flags <= known, f"{shlex.join(path)}: {sorted(flags - known)}"
    command.make_context("plait", rest)


@pytest.mark.parametrize("name", OURS)
def test_every_flag_exists(name: str) -> None:
    check_words(words(SERVICES[name]))


@pytest.mark.parametrize("name", sorted(CUDA["services"].keys() & {"node-1"}))
def test_every_flag_of_the_gpu_file_exists(name: str) -> None:
    check_words(words(CUDA["services"][name]))


def test_every_flag_in_the_dockerfile_exists() -> None:
    commands = re.findall(r'CMD (\["plait".*\])', DOCKERFILE)
    assert commands
    for command in commands:
        check_words(yaml.safe_load(command)[1:])


def test_a_flag_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError, match="--no-such"):
        check_words(["coordinator", "--no-such=1"])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_a_health_check_and_few_rights(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    assert isinstance(check, dict) and {"test", "interval", "timeout", "retries"} <= set(check)
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "privileged" not in service and "network_mode" not in service


def test_nobody_is_root() -> None:
    """Ours by the image's USER, the last word of each image; Mosquitto by its own line."""
    assert SERVICES["mosquitto"]["user"] == "10001:10001"
    for name in OURS:
        assert "user" not in SERVICES[name]
    (run_stage,) = re.findall(r"^FROM \S+ AS run\n(.*?)^FROM ", DOCKERFILE, re.M | re.S)
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.M) == ["10001:10001"]
    assert "USER 10001:10001" in run_stage and "--uid 10001" in run_stage
    for target in ("coordinator", "node-cpu", "node-cuda"):
        assert re.search(rf"^FROM run AS {target}$", DOCKERFILE, re.M)


def test_health_checks_call_what_exists() -> None:
    for name in OURS:
        check = SERVICES[name]["healthcheck"]
        assert isinstance(check, dict)
        if name == "coordinator":
            assert f"http://127.0.0.1:{HTTP_PORT}/health" in check["test"][-1]
        else:
            assert check["test"][:2] == ["CMD", "plait"]
            check_words(check["test"][2:])


def test_every_node_finds_the_token_that_is_written_for_it() -> None:
    written = {w for w in words(SERVICES["coordinator"]) if w.startswith("--token-file=")}
    nodes = [name for name in OURS if name != "coordinator"]
    read = [w for name in nodes for w in words(SERVICES[name]) if w.startswith("--token-file=")]
    assert len(nodes) == 3 and sorted(read) == sorted(written)
    homes = [volume for name in nodes for volume in words(SERVICES[name], "volumes")]
    assert len([v for v in homes if v.endswith(":/var/lib/plait")]) == len(
        set(homes) - {"models:/var/cache/plait", "join:/join:ro"}
    ), "two nodes share an identity"
    declared = set(FILE["volumes"])
    mounted = {v.partition(":")[0] for s in SERVICES.values() for v in words(s, "volumes")}
    assert {v for v in mounted if not v.startswith("./")} == declared


def test_the_broker_is_named_as_its_certificate_is_and_only_loopback_is_published() -> None:
    coordinator = words(SERVICES["coordinator"])
    assert "--mqtt=mqtts://mosquitto:8883" in coordinator
    assert "--broker-name=mosquitto" in coordinator
    for service in SERVICES.values():
        ports = service.get("ports", [])
        assert isinstance(ports, list) and all(p.startswith("127.0.0.1:") for p in ports)


@pytest.mark.parametrize("files", [[], ["-f", "docker-compose.yml", "-f", "docker/cuda.yml"]])
def test_compose_reads_it(files: list[str]) -> None:
    docker = shutil.which("docker")
    if docker is None or not _has_compose(docker):
        pytest.skip("docker with its compose plugin is in no package of Debian 12")
    read = subprocess.run(
        [docker, "compose", *files, "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert read.returncode == 0, read.stderr


def _has_compose(docker: str) -> bool:
    version = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
    return version.returncode == 0
