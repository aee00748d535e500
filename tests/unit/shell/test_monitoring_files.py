"""The monitoring examples: whatever they ask for is at /metrics, and the page names it."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.dashboard.fakes import ADMIN_KEY
from tests.unit.shell.test_metrics import ask

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "monitoring"
NAME = re.compile(r"\bplait_[a-z_]+\b")


async def sample_names() -> set[str]:
    text = (await ask(f"Bearer {ADMIN_KEY}")).text
    return {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }


def expressions() -> list[str]:
    board = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
    of_board = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return of_board + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


async def test_boards_and_alerts_ask_for_what_there_is() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 15
    assert asked - await sample_names() == set()


async def test_the_page_names_every_figure() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    unnamed: set[str] = set()
    for name in await sample_names():
        base = re.sub(r"_(bucket|count|sum|created)$", "", name)
        tail = re.sub(r"^plait_(requests|node)_", "", base)
        named = base in page or f"`_{tail.removesuffix('_total')}_`" in page or f"`{tail}`" in page
        if not named:
            unnamed.add(name)
    assert not unnamed, "docs/monitoring.md does not name these"


@pytest.mark.parametrize("name", ["alerts.yml", "prometheus.yml"])
def test_every_alert_has_its_row_and_every_file_is_yaml(name: str) -> None:
    content = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    for group in content.get("groups", []):
        for rule in group["rules"]:
            assert rule["alert"] in page and rule["annotations"]["summary"]
