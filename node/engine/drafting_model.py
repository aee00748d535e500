"""Loads a whole small model to guess with, and says whose tokens it knows."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from node.engine.device import Device
from node.engine.drafting_book import CHUNK_TOKENS, GROUP_MAX
from node.engine.held import Loader, OpenSource, ReadVocabulary
from node.engine.memory import workspace_bytes
from node.engine.runner import Runner
from node.engine.sequence import StepItem
from node.ports import StageResult
from plait.errors import ModelError, OverloadedError, PlaitError
from plait.models import in_format, pin, prefetch, resolve, span_tensor_names
from plait.models.vocabulary import Vocabulary, load_vocabulary
from plait.types import ModelSource, ModelSpec, Reason, SourceKind

KV_TOKENS_MAX: Final = 16_384
"""Slots for all requests that it guesses for; those that find none go without its guesses."""

KV_TOKENS_MIN: Final = 256
MEMORY_SHARE: Final = 0.75
"""Of what the node may use at most: it is there for its layers."""

_MIB: Final = 1 << 20
_STEP_TOKENS: Final = GROUP_MAX + CHUNK_TOKENS


class DraftModel:
    """A model in memory that runs steps; lives in the draft model's thread once it is loaded."""

    def __init__(
        self,
        spec: ModelSpec,
        runner: Runner,
        *,
        vocabulary: str,
        memory_bytes: int,
        read_vocabulary: ReadVocabulary = load_vocabulary,
    ) -> None:
        self.spec = spec
        self.memory_bytes = memory_bytes
        self.num_slots = runner.pool.num_slots
        self.sequence_tokens_max = min(spec.context_tokens_max, self.num_slots)
        self._runner = runner
        self._vocabulary = vocabulary
        self._read_vocabulary = read_vocabulary

    def refusal(self, spec: ModelSpec, source: ModelSource) -> Reason | None:
        """Why this model does not guess tokens of the one in `source`; None: it does. Blocks."""
        try:
            served = vocabulary_hash(self._read_vocabulary(source))
        except PlaitError as error:
            message = f"the vocabulary of {spec.model_id} cannot be read: {error.message}"
            return Reason(code="draft_vocabulary_unknown", message=message)
        if served == self._vocabulary:
            return None
        message = (
            f"--draft-model {self.spec.model_id} has the vocabulary {self._vocabulary[:12]}, "
            f"{spec.model_id} has {served[:12]}: its token ids mean something else. Take a small "
            "model of the same family"
        )
        return Reason(code="draft_vocabulary_differs", message=message)

    def run(self, items: Sequence[StepItem]) -> list[StageResult]:
        """One step."""
        return self._runner.run(list(items))

    def close(self) -> None:
        """Let go of the weights' file."""
        self._runner.close()


def load_draft_model(
    name: str,
    device: Device,
    open_source: OpenSource,
    *,
    memory_bytes: int | None,
    kv_tokens_max: int = KV_TOKENS_MAX,
) -> DraftModel:
    """Bring the whole model called `name` to this machine and into its memory, of which the node
    may use `memory_bytes` in all (None: what is free), with at most so many KV slots. Blocks.

    Raises ModelError and WeightsError as any model, OverloadedError where it takes too much.
    """
    source = resolve(name)
    if source.kind is SourceKind.HUB:
        source = pin(source)
    opened = open_source(source)
    try:
        spec = in_format(opened.spec, "auto", opened)
        prefetch(opened, span_tensor_names(spec, spec.whole), lambda done, total: None)
        source = replace(source, digest=opened.digest)
    finally:
        opened.close()
    vocabulary = vocabulary_hash(_vocabulary_of(source, name))
    free = device.free_bytes()
    usable = int(MEMORY_SHARE * (free if memory_bytes is None else min(free, memory_bytes)))
    loader = Loader(
        device,
        open_source,
        memory_bytes=usable,
        kv_tokens_max=min(KV_TOKENS_MAX, kv_tokens_max),
        step_tokens_max=_STEP_TOKENS,
    )
    runner = _load(name, spec, source, usable, loader)
    for layer in runner.pool.layers:
        layer.zero_()  # memory that nobody has touched counts as free
    weights, kv = _sizes(runner)
    workspace = workspace_bytes(spec, spec.whole, device.compute_dtype, _STEP_TOKENS)
    return DraftModel(spec, runner, vocabulary=vocabulary, memory_bytes=weights + kv + workspace)


def _load(name: str, spec: ModelSpec, source: ModelSource, usable: int, loader: Loader) -> Runner:
    try:
        runner, _ = loader.load(
            spec,
            source,
            spec.whole,
            allocation_epoch=0,
            kv_tokens_min=min(KV_TOKENS_MIN, spec.context_tokens_max),
            progress=lambda phase, done, total: None,
        )
    except OverloadedError as error:
        raise OverloadedError(
            f"--draft-model {name} may take three quarters of the node's memory, "
            f"{usable // _MIB} MiB: "
            f"{error.message}",
            reason="draft_too_large",
        ) from error
    return runner


def _sizes(runner: Runner) -> tuple[int, int]:
    """Bytes of weights and of the KV cache."""
    layers = runner.pool.layers
    kv = sum(layer.numel() * layer.element_size() for layer in layers)
    return runner.stage.weight_bytes, kv


def _vocabulary_of(source: ModelSource, name: str) -> Vocabulary:
    try:
        return load_vocabulary(source)
    except ModelError as error:
        raise ModelError(
            f"--draft-model {name}: {error.message}", reason="draft_vocabulary_unknown"
        ) from error


def vocabulary_hash(vocabulary: Vocabulary) -> str:
    """sha256 (hex) over what each token id stands for; ids behind the last that stands for anything
    are padding."""
    last = len(vocabulary.pieces)
    while last and not vocabulary.pieces[last - 1] and last - 1 not in vocabulary.special:
        last -= 1
    digest = hashlib.sha256()
    for token_id in range(last):
        piece = vocabulary.pieces[token_id]
        special = vocabulary.special.get(token_id, "").encode()
        digest.update(b"%d:%d:%b%b" % (len(piece), len(special), piece, special))
    return digest.hexdigest()
