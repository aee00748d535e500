"""Phase 2 of one model: chains kept ready, the exact search behind them."""

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from plait.types import ModelSpec, NodeId, Route
from scheduler.cost import Links
from scheduler.selection.affinity import ChainKey, two_choices
from scheduler.selection.board import Board
from scheduler.selection.candidates import Candidate, Query
from scheduler.selection.chains import Chain, Chains, Obstacle
from scheduler.selection.decision import Decision, How
from scheduler.selection.evidence import Evidence
from scheduler.selection.finding import (
    TYPICAL_NEW_TOKENS,
    TYPICAL_PROMPT_TOKENS,
    find_chains,
    planned_chains,
)
from scheduler.selection.groups import INFINITE
from scheduler.selection.potential import Figures, Ground
from scheduler.selection.shortest import IsBlocked, select_route
from scheduler.selection.stitched import Stitcher

Planned = Sequence[tuple[Sequence[NodeId], float]]
"""The plan's chains and the share of the load each is to take."""
STITCHED_REGIONS_MAX: Final = 256
"""Where hops are told apart by more places, the general search stitches."""
EXACT_AT_ONCE_MAX: Final = 32
"""Up to so many nodes the exact search needs no preparation that anybody would notice."""
LOOKS_AT_ONCE: Final = 16_000
ROUGH_LOOKS: Final = 8_000
"""Nodes that searches for ready chains look at before the first request is answered; a search where
spans overlap takes as long as if it looked at so many."""
CHAIN, AFFINITY = How.CHAIN, How.AFFINITY
NOBODY: Final[frozenset[NodeId]] = frozenset()
NOTHING: Final[Mapping[int, Obstacle]] = {}


class RoughSearch(Protocol):
    """What is used of `rough.Rough`."""

    def best(
        self, query: Query, figures: Sequence[Figures], excluded: Collection[NodeId] = ()
    ) -> tuple[Route, float] | None: ...


def _rough(board: Board, ground: Ground) -> RoughSearch:
    """Imported when first needed: it brings numpy, which the coordinator's core must not."""
    module = importlib.import_module("scheduler.selection.rough")
    search: RoughSearch = module.Rough(board, ground)
    return search


class Router:
    """Nodes that serve a model, prepared for many requests.

    Rebuilt when nodes come, go or move, or hops are measured anew; told of loads one by one.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        links: Links,
        *,
        spec: ModelSpec,
        hop_bytes: int,
        planned: Planned = (),
    ) -> None:
        self._spec = spec
        self._links = links
        self._board = Board(candidates, links, num_layers=spec.num_layers, hop_bytes=hop_bytes)
        self.tell = self._board.tell
        """News of a node's load alone: what every reservation and release brings, on every stage.
        Reckoned with when the next request comes. False: the node is not known here."""
        self._is_aligned = self._board.is_aligned
        self._stitcher = None
        if not self._is_aligned and self._board.num_regions <= STITCHED_REGIONS_MAX:
            self._stitcher = Stitcher(self._board, spec.num_layers)
        self._rough: RoughSearch | None = None
        if self._stitcher is not None and len(candidates) > EXACT_AT_ONCE_MAX:
            self._rough = _rough(self._board, self._stitcher.ground)
        self._typical = Query(
            spec=spec,
            prompt_tokens=TYPICAL_PROMPT_TOKENS,
            new_tokens=TYPICAL_NEW_TOKENS,
            kv_tokens=0,
            hop_bytes=hop_bytes,
        )
        known = planned_chains(self._board, planned, spec.num_layers)
        self._chains = Chains(self._board, known)
        self._board.listeners.append(self._chains.update)
        self._finding = find_chains(self._board, known, self._typical_route)
        self._is_growing = True
        self._unprepared: Query | None = None
        looks = len(candidates) if self._rough is None else ROUGH_LOOKS
        for _ in range(max(1, LOOKS_AT_ONCE // max(1, looks))):
            self.grow()

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Nodes as they were last told of."""
        self._board.take_in()
        return self._board.candidates

    @property
    def chains(self) -> Chains:
        """What is kept ready."""
        self._board.take_in()
        return self._chains

    def grow(self) -> bool:
        """One step of what is not urgent: look for another chain to keep ready, or prepare a part
        of the exact search. False: nothing is left to be done."""
        if self._is_growing:
            try:
                found = next(self._finding)
            except StopIteration:
                self._is_growing = False
            else:
                if found is not None:
                    self._board.take_in()
                    self._chains.add(found)
                return True
        if self._unprepared is not None and self._stitcher is not None:
            if self._stitcher.prepare(self._unprepared):
                return True
            self._unprepared = None
        return False

    def update(self, candidate: Candidate) -> bool:
        """News of a node. False: a new router is due."""
        index = self._board.update(candidate)
        if index is not None:
            self._chains.recut(index)
        return index is not None

    def route(
        self,
        query: Query,
        excluded: Collection[NodeId] = NOBODY,
        *,
        is_blocked: IsBlocked | None = None,
        held_tokens: Mapping[ChainKey, int] | None = None,
    ) -> Decision | None:
        """A chain with room on every stage, or None where no chain has. Reserves nothing.

        `held_tokens` is what chains hold of the prompt (PrefixIndex). Where hops are blocked the
        ready chains are taken if theirs are free.
        """
        if self._is_growing or self._unprepared is not None:
            self.grow()
        if self._board.news:
            self._board.take_in()
        chains = self._chains
        totals = chains.totals(query)
        if excluded:
            chains.without(totals, excluded)
        if is_blocked is not None:
            self._drop_blocked(totals, is_blocked)
        is_open = not excluded and is_blocked is None and chains.has_room(query)
        chosen = chains.turn(totals)
        if chosen is None:
            evidence = self._evidence(query, totals, excluded)
            return self._search(query, excluded, is_blocked, totals, evidence)
        evidence = (
            Evidence(query, chains.sums, chains.ways, NOTHING)
            if is_open
            else self._evidence(query, totals, excluded)
        )
        how, held = CHAIN, 0
        if held_tokens:
            saved = self._saved(query, held_tokens, totals)
            chosen, is_affine = two_choices(totals, saved, chosen)
            if is_affine:
                how, held = AFFINITY, held_tokens[chains.all[chosen].route]
                query = _without_held(query, held)
        total_ms = totals[chosen]
        ttft_ms, token_ms = chains.figures(chosen, query)
        all_ = chains.all
        route = all_[chosen].route
        return Decision(
            how,
            route,
            total_ms,
            ttft_ms,
            token_ms,
            all_,
            tuple(totals),
            len(excluded),
            held,
            evidence,
        )

    def refusals(
        self, query: Query, excluded: Collection[NodeId] = NOBODY
    ) -> list[tuple[Chain, Obstacle]]:
        """What keeps each ready chain from a request that none can take."""
        self._board.take_in()
        totals = self._chains.totals(query)
        if excluded:
            self._chains.without(totals, excluded)
        return [
            (self._chains.all[c], self._chains.obstacle(c, query, excluded))
            for c, total in enumerate(totals)
            if total == INFINITE
        ]

    def _evidence(
        self, query: Query, totals: Sequence[float], excluded: Collection[NodeId]
    ) -> Evidence:
        chains = self._chains
        obstacles = (
            {
                c: chains.obstacle(c, query, excluded)
                for c, total in enumerate(totals)
                if total == INFINITE
            }
            if INFINITE in totals
            else NOTHING
        )
        return Evidence(query, chains.sums, chains.ways, obstacles)

    def exact(
        self,
        query: Query,
        excluded: Collection[NodeId] = NOBODY,
        is_blocked: IsBlocked | None = None,
    ) -> tuple[Route, float] | None:
        """The cheapest chain of all, and its milliseconds."""
        self._board.take_in()
        if self._is_aligned and is_blocked is None:
            found = self._board.best(query, excluded)
            return (self._board.route(found.path), found.total_ms) if found is not None else None
        if self._stitcher is not None and is_blocked is None:
            return self._stitcher.best(query, excluded)
        able = [c for c in self._board.candidates if c.node_id not in excluded]
        choice = select_route(able, query, self._links, is_blocked=is_blocked)
        return (choice.route, choice.total_ms) if choice is not None else None

    def _search(
        self,
        query: Query,
        excluded: Collection[NodeId],
        is_blocked: IsBlocked | None,
        totals: list[float],
        evidence: Evidence,
    ) -> Decision | None:
        found = self._behind(query, excluded, is_blocked)
        if found is None:
            return None
        route, total_ms = found
        chain = Chains(self._board, [Chain(route, 1.0)])
        ttft_ms, token_ms = chain.figures(0, query)
        return Decision(
            how=How.SEARCH,
            route=route,
            total_ms=total_ms,
            ttft_ms=ttft_ms,
            token_ms=token_ms,
            chains=self._chains.all,
            totals=tuple(totals),
            num_excluded=len(excluded),
            evidence=evidence,
        )

    def _behind(
        self, query: Query, excluded: Collection[NodeId], is_blocked: IsBlocked | None
    ) -> tuple[Route, float] | None:
        """The exact search, or one that finds a chain wherever there is one while the exact search
        would have to prepare itself."""
        if self._rough is None or self._stitcher is None or is_blocked is not None:
            return self.exact(query, excluded, is_blocked)
        if self._stitcher.is_prepared(query):
            return self._stitcher.best(query, excluded)
        self._unprepared = query
        return self._rough.best(query, self._stitcher.figures(), excluded)

    def _typical_route(self, excluded: Collection[NodeId]) -> Route | None:
        """Room is looked at when a request comes."""
        if self._rough is not None and self._stitcher is not None:
            found = self._rough.best(self._typical, self._stitcher.figures(), excluded)
        else:
            found = self.exact(self._typical, excluded)
        return found[0] if found is not None else None

    def _drop_blocked(self, totals: list[float], is_blocked: IsBlocked) -> None:
        for c, chain in enumerate(self._chains.all):
            ids = chain.node_ids
            ring = zip(ids, ids[1:] + ids[:1], strict=True)
            if totals[c] < INFINITE and any(a != b and is_blocked(a, b) for a, b in ring):
                totals[c] = INFINITE

    def _saved(
        self, query: Query, held_tokens: Mapping[ChainKey, int], totals: Sequence[float]
    ) -> dict[int, float]:
        """What usable chains would be priced lower for what they hold of the prompt."""
        return {
            c: totals[c] - self._chains.total(c, _without_held(query, held_tokens[chain.route]))
            for c, chain in enumerate(self._chains.all)
            if totals[c] < INFINITE and chain.route in held_tokens
        }


def _without_held(query: Query, held_tokens: int) -> Query:
    """The last token is always run: it gives the first new one."""
    return replace(query, prompt_tokens=max(1, query.prompt_tokens - held_tokens))
