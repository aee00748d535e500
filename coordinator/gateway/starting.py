"""What the first stage of a route gets: a signed ticket, and everything generated so far."""

import zlib
from collections.abc import Callable

from coordinator.core import effects as fx
from coordinator.gateway.found import client_tag
from coordinator.gateway.generation import Generation
from plait.clock import Clock
from plait.prefixes import cache_salt
from plait.types import DType, RouteTicket, TicketStage
from plait.wire.sampling import sampling_to_proto
from plait.wire.tickets import signed_ticket
from plait.wire.v1 import data_pb2


class RouteStarter:
    """Builds StartRequests. `sign` is the network's ticket signature, `new_id` names tickets."""

    def __init__(
        self,
        *,
        sign: Callable[[bytes], bytes],
        network_id: str,
        clock: Clock,
        new_id: Callable[[], str],
        wire_dtype: DType,
        ticket_life_ms: int,
    ) -> None:
        self._sign = sign
        self._network_id = network_id
        self._clock = clock
        self._new_id = new_id
        self._wire_dtype = wire_dtype
        self._ticket_life_ms = ticket_life_ms
        self._last_admission = 0

    def start(self, effect: fx.OpenRoute, generation: Generation) -> data_pb2.StartRequest:
        """For stage 0. On a later epoch the sequence goes on behind the last token seen."""
        sampling, generated = generation.sampling, generation.generated_ids
        sequence = [*generation.prompt_ids, *generated]
        prompt_ids = sorted(set(generation.prompt_ids)) if sampling.repetition_penalty != 1 else ()
        opening = data_pb2.Open(
            ticket=signed_ticket(self._ticket(effect, generation), self._sign),
            stage_index=0,
            sampling=sampling_to_proto(sampling),
            stop_token_ids=generation.stop_token_ids,
            max_new_tokens=generation.max_new_tokens - len(generated),
            prompt_tokens=len(sequence),
            penalty_prompt_ids=prompt_ids,
            penalty_generated_ids=generated if sampling.needs_history else (),
            trace_id=zlib.crc32(effect.request_id.encode()),
        )
        if generation.draft_tokens is not None:
            opening.drafts_max = generation.draft_tokens
        return data_pb2.StartRequest(open=opening, prompt_token_ids=sequence)

    def _ticket(self, effect: fx.OpenRoute, generation: Generation) -> RouteTicket:
        now_ms = self._clock.unix_ms()
        if generation.admission == 0:
            self._last_admission = max(self._last_admission + 1, now_ms)
            generation.admission = self._last_admission
        return RouteTicket(
            ticket_id=self._new_id(),
            network_id=self._network_id,
            request_id=effect.request_id,
            epoch=effect.epoch,
            model_id=effect.model_id,
            stages=tuple(
                TicketStage(
                    node_id=stage.node_id,
                    incarnation=stage.incarnation,
                    span=stage.span,
                    addresses=addresses,
                    wire_dtype=dtype,
                )
                for stage, addresses, dtype in zip(
                    effect.route,
                    effect.addresses,
                    effect.hop_dtypes or (None,) * len(effect.route),
                    strict=True,
                )
            ),
            kv_tokens=effect.kv_tokens,
            issued_unix_ms=now_ms,
            expires_unix_ms=now_ms + self._ticket_life_ms,
            wire_dtype=self._wire_dtype,
            cache_salt=cache_salt(self._network_id, generation.key_id),
            admission=generation.admission,
            client_tag=client_tag(self._sign, generation.fingerprint),
        )
