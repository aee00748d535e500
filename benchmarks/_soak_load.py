"""Clients that ask all the time, and hold each answer against the one that was undisturbed."""

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from plait.cli.local_network import LocalNetwork
from plait.errors import PlaitError
from plait.sdk import Client
from tests.kit.network import client_of

NUM_CLIENTS: Final = 4
NUM_PROMPTS: Final = 8
NUM_TOKENS: Final = 120
NUM_LEAVERS: Final = 10
"""One request in so many is left half-way by its client."""


@dataclass(slots=True)
class Answers:
    """What came of the requests so far."""

    num_right: int = 0
    num_left: int = 0
    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    num_resumed: int = 0
    longest_s: float = 0.0


class Load:
    """`NUM_CLIENTS` threads, from the beginning of its block to the end."""

    def __init__(self, network: LocalNetwork, seed: int) -> None:
        self._network = network
        self._seed = seed
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._alone: list[tuple[int, ...]] = []
        self._threads: list[threading.Thread] = []
        self.answers = Answers()

    def __enter__(self) -> "Load":
        with client_of(self._network) as client:
            self._alone = [self._ask(client, who)[0] for who in range(NUM_PROMPTS)]
        for number in range(NUM_CLIENTS):
            thread = threading.Thread(target=self._run, args=(number,), name=f"client {number}")
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, client: Client, who: int) -> tuple[tuple[int, ...], int]:
        """(ids, chains). Sampled, so that a lost seed would show. Raises PlaitError."""
        prompt = [who + 1, *range(40, 60)]
        stream = client.stream(
            prompt, max_tokens=NUM_TOKENS, temperature=0.8, seed=who, ignore_eos=True
        )
        ids = tuple(token_id for delta in stream for token_id in delta.token_ids)
        return ids, stream.result.num_attempts

    def _run(self, number: int) -> None:
        rng = random.Random(f"{self._seed} client {number}")
        with client_of(self._network) as client:
            while not self._is_over.is_set():
                who = rng.randrange(NUM_PROMPTS)
                if rng.randrange(NUM_LEAVERS) == 0:
                    self._leave(client, who)
                else:
                    self._check(client, who)

    def _leave(self, client: Client, who: int) -> None:
        try:
            with client.stream([who + 1, *range(40, 60)], max_tokens=NUM_TOKENS) as stream:
                next(iter(stream), None)
        except PlaitError as error:
            with self._lock:
                self.answers.failed.append(f"leaving: {error.code}: {error.message}")
            return
        with self._lock:
            self.answers.num_left += 1

    def _check(self, client: Client, who: int) -> None:
        began_s = time.perf_counter()
        try:
            ids, num_attempts = self._ask(client, who)
        except PlaitError as error:
            with self._lock:
                self.answers.failed.append(f"{error.code}: {error.message}")
            return
        with self._lock:
            answers = self.answers
            answers.longest_s = max(answers.longest_s, time.perf_counter() - began_s)
            answers.num_resumed += num_attempts > 1
            if ids == self._alone[who]:
                answers.num_right += 1
            else:
                answers.changed.append(f"prompt {who}: {len(ids)} tokens")
