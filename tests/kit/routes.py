"""What a route costs, said as plainly as can be: what the searches are held against."""

import itertools

from scheduler.cost import Links
from scheduler.selection import Candidate, Query
from scheduler.selection.candidates import price


def cost(chain: list[Candidate], edges: list[tuple[int, int]], links: Links, query: Query) -> float:
    """Milliseconds from first to last token, stage i running the layers `edges[i]`."""
    steps = query.new_tokens
    total = links.coordinator_rtt_ms(chain[0].node_id) / 2
    for candidate, (a, b) in zip(chain, edges, strict=True):
        own = price(candidate, query)
        total += own.fixed + (b - a) * own.per_layer
    total += price(chain[-1], query).head
    for one, two in itertools.pairwise(chain):
        total += (1 + steps) * links.rtt_ms(one.node_id, two.node_id) / 2
        num_bytes = query.hop_bytes * (query.prompt_tokens + steps)
        total += 1e3 * num_bytes / links.bytes_per_s(one.node_id, two.node_id)
    first, last = chain[0].node_id, chain[-1].node_id
    return total + steps * links.rtt_ms(last, first) / 2 + links.coordinator_rtt_ms(last) / 2
