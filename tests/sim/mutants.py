"""Guards taken out on purpose. Each must be missed by a story or by the simulator."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One textual change of one file; `old` must stand there exactly once."""

    name: str
    path: str
    old: str
    new: str


CORE = "coordinator/core/"
SCHEDULER = "scheduler/"

MUTANTS = (
    Mutant(
        "accept any incarnation",
        CORE + "state.py",
        "if node is None or node.incarnation != incarnation:",
        "if node is None:",
    ),
    Mutant(
        "accept any epoch",
        CORE + "state.py",
        "request.pipeline_id is None or request.epoch != epoch:",
        "request.pipeline_id is None:",
    ),
    Mutant(
        "keep reserved KV",
        CORE + "pipelines.py",
        "            node.kv_tokens_reserved -= pipeline.kv_tokens\n",
        "            pass\n",
    ),
    Mutant(
        "reserve on the first stage only",
        CORE + "pipelines.py",
        "    for stage in route:\n        node = state.nodes[stage.node_id]\n        node.pipe",
        "    for stage in route[:1]:\n        node = state.nodes[stage.node_id]\n        node.pipe",
    ),
    Mutant("reuse the epoch", CORE + "pipelines.py", "request.epoch += 1", "request.epoch = 1"),
    Mutant(
        "no deadline to open",
        CORE + "pipelines.py",
        "state.now_ms + state.limits.open_limit_ms",
        "state.now_ms + 10**9",
    ),
    Mutant(
        "do not requeue what broke",
        CORE + "settle.py",
        "blamed)\n    state.queues[request.model_id].append(request.request_id)\n",
        "blamed)\n",
    ),
    Mutant(
        "whose chain broke waits behind all others",
        CORE + "waiting.py",
        "is_resumed=request.epoch > 0,",
        "is_resumed=False,",
    ),
    Mutant(
        "route over nodes that are not well",
        CORE + "routing.py",
        " or not is_routable(state, node)",
        "",
    ),
    Mutant(
        "tell the ready chains of no load",
        CORE + "routing.py",
        "routes.router.tell(node_id, _load(state, node))",
        "pass",
    ),
    Mutant(
        "keep chains of nodes that went",
        CORE + "routing.py",
        "known is not None and known.topology == state.topology",
        "known is not None",
    ),
    Mutant(
        "a key pays nothing",
        CORE + "dispatch.py",
        "    charge(state, request)\n",
        "",
    ),
    Mutant(
        "attempts without end",
        CORE + "settle.py",
        "if request.num_attempts >= state.limits.attempts_max:",
        "if False:",
    ),
    Mutant(
        "avoid nobody",
        CORE + "settle.py",
        "        request.avoid[node_id] = until_ms\n",
        "        pass\n",
    ),
    Mutant(
        "no limit for waiting",
        CORE + "waiting.py",
        "state.now_ms - request.queued_ms >= state.limits.wait_limit_ms",
        "state.now_ms - request.queued_ms >= 10**9",
    ),
    Mutant(
        "wait where nothing is on its way",
        CORE + "waiting.py",
        "return is_hopeless(state, state.models[request.model_id])",
        "return False",
    ),
    Mutant(
        "no hope for who was lost",
        CORE + "settle.py",
        "if trigger is NodeTrigger.LOST:",
        "if trigger is NodeTrigger.DRAINED:",
    ),
    Mutant(
        "advice of a pool that has changed",
        CORE + "settle.py",
        "state.planning.shortages.clear()",
        "pass",
    ),
    Mutant(
        "route over silent nodes",
        CORE + "settle.py",
        "        and state.now_ms - node.heard_ms < state.limits.suspect_ms\n",
        "",
    ),
    Mutant(
        "route without gateway link",
        CORE + "settle.py",
        "        and state.gateway_links.get(node.node_id) == node.incarnation\n",
        "",
    ),
    Mutant(
        "route over draining nodes",
        CORE + "settle.py",
        "node.state is NodeState.SERVING\n",
        "node.state in (NodeState.SERVING, NodeState.DRAINING)\n",
    ),
    Mutant(
        "a lost node's chains go on",
        CORE + "settle.py",
        "    for pipeline_id in list(node.pipelines):\n        break_pipeline(state, state.p",
        "    for pipeline_id in ():\n        break_pipeline(state, state.p",
    ),
    Mutant(
        "no plan after a loss",
        CORE + "settle.py",
        "        )\n    ask_plan(state)\n",
        "        )\n",
    ),
    Mutant(
        "a rejoin does not lose the older process",
        CORE + "nodes.py",
        "        lose_node(state, old, ALREADY_CONNECTED)\n",
        "        pass\n",
    ),
    Mutant(
        "let an older process in",
        CORE + "nodes.py",
        "old.incarnation > event.incarnation:",
        "False:",
    ),
    Mutant(
        "accept any load report",
        CORE + "nodes.py",
        "    if (node.model_id, node.span) != (held.model_id, held.span):\n",
        "    if False:\n",
    ),
    Mutant(
        "accept a load report twice",
        CORE + "nodes.py",
        "if node.state is not NodeState.LOADING or node.epoch != epoch:",
        "if node.epoch != epoch:",
    ),
    Mutant(
        "accept a stale failure",
        CORE + "nodes.py",
        "if node.state is not NodeState.LOADING or node.epoch != epoch:",
        "if node.state is not NodeState.LOADING:",
    ),
    Mutant(
        "serve other weights",
        CORE + "nodes.py",
        "if expected is not None and held.digest != expected:",
        "if False:",
    ),
    Mutant(
        "leases never end",
        CORE + "nodes.py",
        "    silent_ms = state.now_ms - node.heard_ms\n",
        "    return\n",
    ),
    Mutant(
        "a drain without limit",
        CORE + "draining.py",
        "state.timers.at(until_ms, TimerKind.DRAIN_LIMIT, node.key)",
        "pass",
    ),
    Mutant(
        "an older process's link speaks for the new one",
        CORE + "nodes.py",
        "if state.gateway_links.get(event.node_id) != event.incarnation:",
        "if event.node_id not in state.gateway_links:",
    ),
    Mutant(
        "chains outlive their gateway link",
        CORE + "nodes.py",
        "            break_pipeline(state, pipeline, node.node_id, reason)\n",
        "            pass\n",
    ),
    Mutant(
        "believe a stale plan",
        CORE + "planning.py",
        "state.planning.problem is None or event.epoch != state.planning.epoch:",
        "state.planning.problem is None:",
    ),
    Mutant(
        "believe a lying plan",
        CORE + "planning.py",
        "        if wrong:\n            allocation, reason = None, Reason",
        "        if False:\n            allocation, reason = None, Reason",
    ),
    Mutant(
        "wait for the solver for ever",
        CORE + "planning.py",
        "state.planning.problem is not None and state.planning.epoch == epoch:",
        "False:",
    ),
    Mutant(
        "move nodes under running requests",
        CORE + "planning.py",
        "planning.is_relaxed and is_placed(node) and not node.pipelines",
        "planning.is_relaxed and is_placed(node)",
    ),
    Mutant(
        "assign to another attachment",
        CORE + "planning.py",
        "if node is None or node.attachment != planning.attachments.get(placement.node_id):",
        "if node is None:",
    ),
    Mutant(
        "no pause after a failed load",
        CORE + "planning.py",
        "node.plan_after_ms = state.now_ms + pause_ms",
        "node.plan_after_ms = state.now_ms",
    ),
    Mutant(
        "a blocked hop is used",
        CORE + "neighbours.py",
        "if block is not None and block.until_ms > state.now_ms:",
        "if False:",
    ),
    Mutant(
        "chains outlive their hop",
        CORE + "neighbours.py",
        "            break_pipeline(state, pipeline, two, reason)\n",
        "            pass\n",
    ),
    Mutant(
        "queue without bound",
        CORE + "requests.py",
        "if state.num_queued() >= state.limits.queue_max:",
        "if False:",
    ),
    Mutant(
        "submit twice",
        CORE + "requests.py",
        "    if event.request_id in state.requests:\n        state.ignore()\n        return\n",
        "",
    ),
    Mutant(
        "a last token must be of this epoch",
        CORE + "requests.py",
        "not 1 <= event.epoch <= request.epoch:",
        "event.epoch != request.epoch or request.pipeline_id is None:",
    ),
    Mutant(
        "a cancel leaves the queue as it is",
        CORE + "settle.py",
        "        state.queues[request.model_id].remove(request.request_id)\n",
        "        pass\n",
    ),
    Mutant(
        "give KV that is promised",
        CORE + "routing.py",
        "node.kv_tokens_max - node.kv_tokens_reserved,",
        "node.kv_tokens_max,",
    ),
    Mutant(
        "overtake the queue",
        CORE + "dispatch.py",
        'if admission.reason.code != "rerouting" or looked_past',
        "if looked_past",
    ),
    Mutant(
        "a rest blocks the queue",
        CORE + "dispatch.py",
        'if admission.reason.code != "rerouting" or looked_past',
        "if True or looked_past",
    ),
    Mutant(
        "the plan's memory is not checked",
        SCHEDULER + "allocation/verify.py",
        "if need > profile.memory_bytes:",
        "if False:",
    ),
    Mutant(
        "the plan's cover is not checked",
        SCHEDULER + "allocation/verify.py",
        "        if gaps:\n",
        "        if False:\n",
    ),
    Mutant(
        "the plan moves what must stay",
        SCHEDULER + "allocation/verify.py",
        "if node_id in problem.fixed and now is not None and not is_kept:",
        "if False:",
    ),
    Mutant(
        "a chain takes a node twice",
        SCHEDULER + "selection/shortest.py",
        "if index in used or self",
        "if self",
    ),
    Mutant(
        "a chain takes nodes without room",
        SCHEDULER + "selection/shortest.py",
        "[c for c in candidates if c.kv_tokens_free >= query.kv_tokens]",
        "list(candidates)",
    ),
    Mutant(
        "the way back costs nothing",
        SCHEDULER + "selection/shortest.py",
        "return steps * self._links.back_ms(one, two) + ",
        "return ",
    ),
)
