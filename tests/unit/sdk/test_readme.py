"""The README's Python compiles, and names only what the SDK has."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import plait
from plait.sdk.results import Completion, Delta, ModelEntry

README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_one_for_the_sdk_and_one_for_openai() -> None:
    assert [block.splitlines()[0] for block in BLOCKS] == [
        "import plait",
        "from openai import OpenAI",
    ]


def test_its_attributes_exist() -> None:
    known = {field.name for kind in (Completion, Delta, ModelEntry) for field in fields(kind)}
    known |= {"result", *dir(plait), *dir(plait.Client)}
    used = {node.attr for node in ast.walk(ast.parse(BLOCKS[0])) if isinstance(node, ast.Attribute)}
    assert used - known == set()
