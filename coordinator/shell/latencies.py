"""How long clients waited, as histograms for Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from plait.types import ModelId

TTFT_BUCKETS_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0)
TOKEN_BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 3.0)
LENGTH_BUCKETS: Final = (1.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)


class Latencies:
    """Time to the first token, mean time between tokens and length of each answer, by model.

    A request without a token has none of them; one with a single token has no time between tokens.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._ttft = self._histogram(
            "plait_request_ttft_seconds", "Submission to first token", TTFT_BUCKETS_S
        )
        self._between = self._histogram(
            "plait_request_inter_token_seconds",
            "A request's mean time between tokens",
            TOKEN_BUCKETS_S,
        )
        self._length = self._histogram(
            "plait_request_generated_tokens", "Tokens of an answer", LENGTH_BUCKETS
        )

    def ended(self, model_id: ModelId, ttft_ms: int | None, total_ms: int, num_tokens: int) -> None:
        """A request is over; times since its submission, `ttft_ms` None where no token came."""
        if ttft_ms is None:
            return
        self._ttft.labels(model_id).observe(ttft_ms / 1e3)
        self._length.labels(model_id).observe(num_tokens)
        if num_tokens > 1:
            self._between.labels(model_id).observe((total_ms - ttft_ms) / 1e3 / (num_tokens - 1))

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, description, ["model"], registry=self.registry, buckets=buckets)
