"""How many tasks the loops of running processes have, by what these say of themselves."""

import json
import re
import urllib.request
from typing import Final

from node.agent.figures import FILE
from plait.cli.local_network import LocalNetwork

ASK_S: Final = 5.0


def num_tasks(network: LocalNetwork, name: str) -> int | None:
    """Of the coordinator, or of the node of that name; None where it does not say."""
    if name != "coordinator":
        return _of_node(network, name)
    request = urllib.request.Request(
        f"{network.profile.http_url}/metrics",
        headers={"authorization": f"Bearer {network.profile.api_key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            found = re.search(r"^plait_tasks (\S+)", answer.read().decode(), re.MULTILINE)
    except OSError:
        return None
    return round(float(found[1])) if found else None


def _of_node(network: LocalNetwork, name: str) -> int | None:
    """Nodes write it down once a second."""
    for path in (network.home / name.replace(" ", "-")).glob(f"**/{FILE}"):
        try:
            return int(json.loads(path.read_text())["num_tasks"])
        except (OSError, ValueError, KeyError):
            return None
    return None
