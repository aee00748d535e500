"""Repair of a pool's plan: fewest moves after a leave, a join, a slowdown, a new wish."""

from scheduler.planning.repair.damper import Damper
from scheduler.planning.repair.repair import repair_pool
from scheduler.planning.repair.result import Move, Repaired
from scheduler.planning.repair.standing import Standing, Terms, standing_of

__all__ = ["Damper", "Move", "Repaired", "Standing", "Terms", "repair_pool", "standing_of"]
