"""llama.cpp through `llama-cpp-python`, where it is installed: an optional contender."""

import importlib
import time
from pathlib import Path
from typing import Any

_CONTEXT_TOKENS = 1024


class LlamaCpp:
    """One GGUF in llama.cpp, on one thread. Raises ImportError where it is not installed."""

    def __init__(self, path: Path, *, num_requests: int) -> None:
        self._api: Any = importlib.import_module("llama_cpp")
        api = self._api
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            str(path).encode(), api.llama_model_default_params()
        )
        params = api.llama_context_default_params()
        params.n_ctx = _CONTEXT_TOKENS * num_requests
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.n_seq_max = num_requests
        self._context = api.llama_init_from_model(self._model, params)
        self._num_requests = num_requests

    def decode(self, prompt: list[int], num_tokens: int) -> float:
        """Tokens a second of all requests, after their prompts."""
        api = self._api
        has_data = True  # the slots' contents go too
        api.llama_memory_clear(api.llama_get_memory(self._context), has_data)
        for index in range(self._num_requests):
            self._run(
                [(token, at, index, at == len(prompt) - 1) for at, token in enumerate(prompt)]
            )
        started = time.perf_counter()
        for step in range(num_tokens - 1):
            position = len(prompt) + step
            self._run([(100 + step, position, index, True) for index in range(self._num_requests)])
        return self._num_requests * (num_tokens - 1) / (time.perf_counter() - started)

    def close(self) -> None:
        """Free model and context."""
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        api = self._api
        batch = api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, has_logits) in enumerate(rows):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = has_logits
        failed = api.llama_decode(self._context, batch)
        api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama.cpp failed with {failed}")
