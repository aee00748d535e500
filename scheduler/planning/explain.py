"""Why each node of a pool's plan got what it got."""

from collections.abc import Iterator

from scheduler.planning.ground import Ground, Replica, replica_figures
from scheduler.planning.pool import PoolPlan
from scheduler.survival import REPAIR_S, up_share


def reasons(ground: Ground, plan: PoolPlan) -> Iterator[tuple[str, str]]:
    """(node, sentence) for every node, in the order of chains; then those that stand by."""
    for number, chain in enumerate(plan.chains, start=1):
        figures = replica_figures(
            ground, Replica(tuple(zip(chain.members, chain.counts, strict=True)))
        )
        last = len(chain.members) - 1
        at = 0
        for position, (index, layers) in enumerate(zip(chain.members, chain.counts, strict=True)):
            machine = ground.machines[index]
            is_first, is_last = position == 0, position == last
            fits = machine.layers_max(is_first=is_first, is_last=is_last)
            held = machine.sequences_max(layers, is_first=is_first, is_last=is_last)
            what = "all layers that fit" if layers == fits else f"{fits} layers would fit"
            if held == figures.num_sequences:
                what += f"; its KV of {held} sequences is the chain's limit"
            else:
                what += f"; its KV holds {held} sequences, the chain runs {figures.num_sequences}"
            ends = " with the embedding" if is_first else ""
            ends += " and" if is_first and is_last else ""
            ends += " with the LM head" if is_last else ""
            step_ms = 1e3 * machine.curve.step_s(layers, 1.0, is_last=is_last)
            if machine.loss > 0.0:
                hours = REPAIR_S / machine.loss / 3600
                share = up_share(sum(ground.machines[i].loss for i in chain.members))
                what += (
                    f"; it stays about {hours:.1f} h, with the others that makes its chain count "
                    f"{100 * share:.1f} %"
                )
            yield (
                machine.node_id,
                f"layers {at}-{at + layers - 1}{ends} in chain {number} "
                f"({ground.regions[machine.region]}, {step_ms:.1f} ms a step): {what}",
            )
            at += layers
    for index in plan.idle:
        yield ground.machines[index].node_id, "stands by: no further replica fits with what is left"
