"""What must stay light or separate, seen from a fresh interpreter."""

import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    """Names of top-level modules in memory after `statement` ran in a new process."""
    code = f"import sys\n{statement}\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


@pytest.mark.parametrize("statement", ["import plait", "import plait.cli.main"])
def test_the_sdk_and_the_cli_start_without_the_heavy_libraries(statement: str) -> None:
    heavy = {"torch", "numpy", "transformers", "fastapi", "nicegui", "sqlalchemy", "pulp", "gguf"}
    assert loaded_by(statement) & heavy == set()


def test_the_cores_and_the_scheduler_are_pure() -> None:
    loaded = loaded_by("import coordinator.core.core, scheduler.selection, node.core")
    assert loaded & {"grpc", "torch", "numpy", "structlog", "sqlalchemy"} == set()


@pytest.mark.slow
def test_a_node_runs_without_the_scheduler_and_the_coordinator() -> None:
    loaded = loaded_by("import node.main")
    assert loaded & {"scheduler", "coordinator", "pulp", "fastapi"} == set()


@pytest.mark.slow
def test_a_coordinator_runs_without_torch() -> None:
    loaded = loaded_by("import coordinator.main")
    assert loaded & {"torch", "node"} == set()
