"""Guards of the node's core, of routes that are found again, drains, repairs and the journal."""

from tests.sim.mutant import Mutant

SESSIONS = "node/core/sessions.py"
TOKENS = "node/core/tokens.py"
ENDS = "node/core/ends.py"
KEPT = "node/core/kept.py"
OPENING = "node/core/opening.py"
CHECKS = "node/core/checks.py"
NODE = "node/core/core.py"
RESUMING = "coordinator/core/resuming.py"
DRAINING = "coordinator/core/draining.py"
PLANNING = "coordinator/core/planning.py"
JOURNAL = "coordinator/shell/journal.py"

MORE = (
    Mutant(
        "open what has ended",
        SESSIONS,
        "is_late = opened.epoch <= node.ended.get(opened.request_id, 0)",
        "is_late = False",
    ),
    Mutant(
        "open one epoch twice",
        SESSIONS,
        "if refusal is None and current is not None and current.epoch == opened.epoch:",
        "if False:",
    ),
    Mutant(
        "rows from anybody",
        SESSIONS,
        "        if session.previous_id != sender:\n",
        "        if False:\n",
    ),
    Mutant(
        "rows twice",
        SESSIONS,
        "        if arrived.position < session.due_position:\n",
        "        if False:\n",
    ),
    Mutant(
        "tokens from anybody",
        TOKENS,
        "if not session.is_first or session.is_last or session.last_id != sender:",
        "if not session.is_first or session.is_last:",
    ),
    Mutant(
        "anybody closes",
        SESSIONS,
        "        if sender not in (None, session.previous_id):\n",
        "        if False:\n",
    ),
    Mutant(
        "an ended epoch is not remembered",
        ENDS,
        "        self._node.remember_end(session.request_id, max(session.epoch, epoch or 0))\n",
        "",
    ),
    Mutant(
        "KV of an ended session stays",
        ENDS,
        "        out.append(ReleaseKv(session.request_id, session.epoch))\n",
        "",
    ),
    Mutant(
        "a lost link breaks nothing",
        SESSIONS,
        "            if session.touches(neighbour_id):\n",
        "            if False:\n",
    ),
    Mutant(
        "rows with a gap",
        CHECKS,
        "    if rows.position > session.next_position:\n",
        "    if False:\n",
    ),
    Mutant(
        "rows beyond the slots",
        CHECKS,
        "    if rows.position + rows.num_tokens > session.position_limit:\n",
        "    if False:\n",
    ),
    Mutant(
        "new work while draining",
        OPENING,
        "    if node.state is NodeState.DRAINING:\n",
        "    if False:\n",
    ),
    Mutant(
        "sessions without bound",
        OPENING,
        "if is_new and len(node.sessions) >= node.limits.sessions_max:",
        "if False:",
    ),
    Mutant(
        "another's layers are opened",
        OPENING,
        "    if not held.span.contains(span):\n",
        "    if False:\n",
    ),
    Mutant(
        "a token of another epoch is kept",
        KEPT,
        "if kept is not None and kept.epoch == token.epoch:",
        "if kept is not None:",
    ),
    Mutant(
        "tokens are kept for ever",
        KEPT,
        "elif now_ms - kept.ended_ms >= KEEP_MS:",
        "elif False:",
    ),
    Mutant(
        "what is kept has no bound",
        KEPT,
        "while self._num_tokens > self._tokens_max or len(self._routes) > self._routes_max:",
        "while False:",
    ),
    Mutant(
        "what runs goes first",
        KEPT,
        "(r for r, kept in self._routes.items() if not kept.is_running)",
        "iter(())",
    ),
    Mutant(
        "idle sessions stay",
        NODE,
        "if now_ms - session.active_ms >= node.limits.session_idle_ms:",
        "if False:",
    ),
    Mutant(
        "the gateway is waited for in vain",
        NODE,
        "down_ms is not None and now_ms - down_ms >= node.limits.gateway_grace_ms",
        "False",
    ),
    Mutant(
        "tickets outlive their coordinator",
        NODE,
        "elif not node.is_attached and now_ms >= session.ticket_end_ms:",
        "elif False:",
    ),
    Mutant(
        "an epoch that nodes may know",
        RESUMING,
        "resumes_epoch + state.limits.attempts_max",
        "resumes_epoch",
    ),
    Mutant(
        "a found route's newer epoch is not learnt",
        RESUMING,
        "    if event.epoch > request.epoch:\n",
        "    if False:\n",
    ),
    Mutant(
        "a found route over another process",
        RESUMING,
        "is_same = node.incarnation == stage.incarnation and node.state is NodeState.SERVING",
        "is_same = node.state is NodeState.SERVING",
    ),
    Mutant(
        "a found route beyond the KV",
        RESUMING,
        "has_room = node.kv_tokens_reserved + found.kv_tokens <= node.kv_tokens_max",
        "has_room = True",
    ),
    Mutant(
        "a found route's KV is not in the books",
        RESUMING,
        "        node.kv_tokens_reserved += pipeline.kv_tokens\n",
        "",
    ),
    Mutant(
        "nothing is held for its route",
        RESUMING,
        "return state.requests[request_id].hold_until_ms > state.now_ms",
        "return False",
    ),
    Mutant(
        "what is given up stays on its nodes",
        RESUMING,
        "request.hold_until_ms = None, 0\n    state.must_dispatch = True\n    state.emit(",
        "request.hold_until_ms = None, 0\n    state.must_dispatch = True\n    repr(",
    ),
    Mutant(
        "any process asks for the drain",
        DRAINING,
        "    if node is None or is_foreign or node.state is NodeState.DRAINING:",
        "    if node is None or node.state is NodeState.DRAINING:",
    ),
    Mutant(
        "drained without a drain",
        DRAINING,
        "    if node.state is not NodeState.DRAINING:\n        state.ignore()\n        return\n",
        "",
    ),
    Mutant(
        "off a draining node into nowhere",
        DRAINING,
        "if is_late or find_route(state, request, query) is not None:",
        "if True:",
    ),
    Mutant(
        "a draining node's work is never moved",
        DRAINING,
        "        state.timers.at(next_ms, TimerKind.DRAIN_MOVE, node.key)\n",
        "        pass\n",
    ),
    Mutant(
        "repairs on each other's heels",
        PLANNING,
        "since_ms = planning.moved_ms if _has_idle(state) else state.now_ms",
        "since_ms = None",
    ),
    Mutant(
        "torn replicas are left alone",
        PLANNING,
        "if plan is None or all(_holds(state, placement) for placement in plan.placements):",
        "if True:",
    ),
    Mutant(
        "lost entries are not told",
        JOURNAL,
        "            if self._num_lost:\n",
        "            if False:\n",
    ),
    Mutant(
        "a journal without its beginning",
        JOURNAL,
        "            if not is_known or number != expected:",
        "            if not is_known:",
    ),
    Mutant(
        "a torn line is passed over",
        JOURNAL,
        '            if may_be_torn and not line.endswith("\\n"):',
        "            if True:",
    ),
)
