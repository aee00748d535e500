"""Many streams at once, each held against what it gave when nothing happened to them."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from plait.sdk import Client, Completion


@dataclass(frozen=True, slots=True)
class Answered:
    """What a stream gave delta by delta, and what it says that it gave in all."""

    streamed_ids: tuple[int, ...]
    whole: Completion


class Crowd:
    """`num` prompts for one client, always the same ones."""

    def __init__(self, client: Client, *, num: int, num_tokens: int) -> None:
        self.num = num
        self._client = client
        self._num_tokens = num_tokens
        self._pool = ThreadPoolExecutor(num)
        self._alone: tuple[tuple[int, ...], ...] = ()
        self._num_seen = 0

    def __enter__(self) -> "Crowd":
        self._alone = tuple(each.result().streamed_ids for each in self.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def ask(self, who: int) -> Answered:
        """One stream to its end. Sampled, so that a lost seed would show."""
        prompt = [who + 1, *range(40, 60)]
        stream = self._client.stream(
            prompt, max_tokens=self._num_tokens, temperature=0.8, seed=who, ignore_eos=True
        )
        ids: list[int] = []
        for delta in stream:
            ids += delta.token_ids
            self._num_seen += len(delta.token_ids)
        return Answered(tuple(ids), stream.result)

    def start(self) -> "list[Future[Answered]]":
        """All at once."""
        self._num_seen = 0
        return [self._pool.submit(self.ask, who) for who in range(self.num)]

    def has_come(self, share: float) -> bool:
        """Whether so much of all tokens that were asked for is here."""
        return self._num_seen >= share * self.num * self._num_tokens

    def check(self, asked: "Sequence[Future[Answered]]", *, timeout_s: float) -> list[Completion]:
        """Wait for all. Asserts that each gave what it gives alone, no token twice, none lost."""
        answers = [each.result(timeout_s) for each in asked]
        for alone, answer in zip(self._alone, answers, strict=True):
            assert answer.streamed_ids == answer.whole.token_ids == alone
        return [answer.whole for answer in answers]
