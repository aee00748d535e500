"""The models an operator named: source, shape and tokenizer, known before any port opens."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.gateway.gguf_tokenizer import tokenizer_from_gguf
from coordinator.gateway.tokens import Tokenizer, tokenizer_from_folder
from plait.errors import ModelError
from plait.log import get
from plait.models import (
    TokenizerFiles,
    in_format,
    load_spec,
    open_source,
    pin,
    pull,
    resolve,
    tokenizer_source,
)
from plait.models.gguf_arrays import read_metadata
from plait.types import ModelSource, ModelSpec, SourceKind

log = get("models")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of the network. `source` carries its revision and digest."""

    spec: ModelSpec
    source: ModelSource
    tokenizer: Tokenizer


def served_models(names: Sequence[str], *, weights: str = "fp32") -> list[ServedModel]:
    """What stands behind the names, in order. Fetches what the coordinator itself needs: a hub
    model's configuration and tokenizer, a catalogue model's file; never a hub model's weights.
    `weights` is one of `plait.models.WEIGHT_CHOICES`.

    Blocks on disk and network. Raises ModelError (unknown, unsupported), WeightsError.
    """
    models = [_served_model(name, weights) for name in names]
    ids = [model.spec.model_id for model in models]
    for model_id in ids:
        if ids.count(model_id) > 1:
            raise ModelError(f"two models are called {model_id!r}: serve one of them")
    return models


def _served_model(name: str, weights: str) -> ServedModel:
    source = resolve(name)
    if source.kind is SourceKind.CATALOGUE:
        pull(source)
    source = pin(source)
    spec = _in_format(load_spec(source), source, weights)
    tokenizer = _tokenizer(tokenizer_source(source))
    log.info(
        "model_opened",
        model_id=spec.model_id,
        layers=spec.num_layers,
        digest=source.digest,
        weights=spec.weight_format,
    )
    return ServedModel(spec=spec, source=source, tokenizer=tokenizer)


def _in_format(spec: ModelSpec, source: ModelSource, weights: str) -> ModelSpec:
    opened = open_source(source)
    try:
        return in_format(spec, weights, opened)
    finally:
        opened.close()


def _tokenizer(files: TokenizerFiles) -> Tokenizer:
    if files.gguf_file is None:
        return tokenizer_from_folder(files.folder)
    return tokenizer_from_gguf(read_metadata(files.folder / files.gguf_file))
