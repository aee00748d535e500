"""`plait plan` on a pool of machines as the planner of whole pools sees them."""

import json
from typing import TYPE_CHECKING

from plait.cli.plan_output import Shown, Watch, write_plan

if TYPE_CHECKING:
    from plait.cli.plan_nominal import NominalPool
    from scheduler.planning.ground import Wish


def plan_ground(pool: "NominalPool", wish: "Wish", shown: Shown) -> None:
    """Plan one model. Raises UnavailableError."""
    from rich.console import Console

    from plait.cli.plan_view import pool_file, pool_json, show_pool
    from plait.cli.solver import Solver

    with Watch() as watch:
        plan = Solver().plan_pool(pool.ground, wish)
    write_plan(shown.out, pool_file(pool, plan))
    if shown.as_json:
        print(json.dumps(pool_json(pool, plan, watch.passed_ms), indent=1))
    else:
        show_pool(Console(), pool, plan, watch.passed_ms, is_explained=shown.is_explained)
