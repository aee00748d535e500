"""Tiny random models made with transformers, and an in-memory source of their weights."""

import hashlib
import itertools
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from node.engine.blocks import Run
from node.engine.device import Device, pick_device
from node.engine.kv_cache import KvPool
from node.engine.loader import load_stage
from node.engine.runner import Runner
from node.engine.sequence import Sequence, StepItem
from node.ports import SequenceOpen, StageWork
from plait.models.source import TensorData
from plait.types import (
    Architecture,
    DType,
    LayerSpan,
    ModelId,
    ModelSpec,
    RequestId,
    RopeScaling,
    SamplingParams,
)
from tests.unit.engine import families
from tests.unit.engine.families import FAMILIES, read_back, scatter

torch.set_num_threads(1)

CPU = pick_device("cpu", DType.FLOAT32)
VOCAB = families.VOCAB
NUM_LAYERS = 3

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass
class MemorySource:
    """A TensorSource over tensors in memory that remembers what was read."""

    spec: ModelSpec
    tensors: dict[str, torch.Tensor]
    read_names: list[str] = field(default_factory=list)
    read_bytes: int = 0
    is_closed: bool = False

    @property
    def digest(self) -> str:
        return hashlib.sha256("".join(sorted(self.tensors)).encode()).hexdigest()

    @property
    def total_bytes(self) -> int:
        return sum(self.stored_bytes(name) for name in self.tensors)

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def stored_bytes(self, name: str) -> int:
        tensor = self.tensors[name]
        return tensor.numel() * tensor.element_size()

    def read(self, name: str) -> TensorData:
        tensor = self.tensors[name].contiguous()
        self.read_names.append(name)
        self.read_bytes += self.stored_bytes(name)
        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        buffer = memoryview(tensor.view(-1).view(torch.uint8).numpy().tobytes())
        return TensorData(name=name, dtype=dtype, shape=tuple(tensor.shape), buffer=buffer)

    def read_rows(self, name: str, rows: Rows[int]) -> TensorData:
        tensor = self.tensors[name][list(rows)]
        self.read_bytes += tensor.numel() * tensor.element_size()
        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        buffer = memoryview(tensor.view(-1).view(torch.uint8).numpy().tobytes())
        return TensorData(name=name, dtype=dtype, shape=tuple(tensor.shape), buffer=buffer)

    def has_rows(self, name: str, rows: Rows[int]) -> bool:
        return True

    def prefetch_rows(self, name: str, rows: Rows[int]) -> None:
        return

    def close(self) -> None:
        self.is_closed = True


@dataclass(frozen=True)
class TinyModel:
    """A model of transformers' and what plait needs to run the same one."""

    reference: PreTrainedModel
    spec: ModelSpec
    tensors: dict[str, torch.Tensor] | None = None
    """As plait names them, where that is not what the reference calls them."""

    def source(self) -> MemorySource:
        if self.tensors is not None:
            return MemorySource(self.spec, dict(self.tensors))
        state = self.reference.state_dict()
        if self.spec.tie_embeddings:
            state = {name: t for name, t in state.items() if name != "lm_head.weight"}
        return MemorySource(self.spec, {name: t.detach().clone() for name, t in state.items()})

    @torch.inference_mode()
    def hidden_states(self, token_ids: list[int]) -> list[torch.Tensor]:
        """Before layer 0, after layer 0, ...: the last one is before the final norm."""
        seen: list[torch.Tensor] = []
        layers = self.reference.get_submodule("model.layers")
        hooks = [
            layer.register_forward_pre_hook(
                lambda _module, args, kwargs: seen.append(
                    args[0] if args else kwargs["hidden_states"]
                ),
                with_kwargs=True,
            )
            for layer in layers.children()
        ]
        hooks.append(
            self.reference.get_submodule("model.norm").register_forward_pre_hook(
                lambda _module, args: seen.append(args[0])
            )
        )
        self.reference(input_ids=torch.tensor([token_ids]))
        for hook in hooks:
            hook.remove()
        return [hidden[0].clone() for hidden in seen]

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """(tokens, vocab) in one pass."""
        result: torch.Tensor = self.reference(input_ids=torch.tensor([token_ids])).logits[0]
        return result


def _spec(architecture: Architecture, num_layers: int, **changes: Any) -> ModelSpec:
    spec = ModelSpec(
        model_id=ModelId(f"tiny-{architecture}"),
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=48,
        intermediate_size=80,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        context_tokens_max=128,
        norm_eps=1e-5,
        rope_theta=10000.0,
        eos_token_ids=(1,),
    )
    return replace(spec, **changes)


def tiny_model(kind: str, num_layers: int = NUM_LAYERS) -> TinyModel:
    """One of `KINDS`, with weights large enough to make differences visible."""
    if kind in FAMILIES:
        return TinyModel(*read_back(kind, num_layers))
    torch.manual_seed(7)
    reference, spec = _BUILDERS[kind](num_layers)
    scatter(reference)
    return TinyModel(reference, spec)


def _llama(
    num_layers: int,
    rope: dict[str, Any],
    scaling: RopeScaling | None,
    *,
    tied: bool = False,
    bias: bool = False,
) -> tuple[PreTrainedModel, ModelSpec]:
    config = LlamaConfig(
        **_SIZES,
        num_hidden_layers=num_layers,
        rope_parameters=rope,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
    )
    spec = _spec(
        Architecture.LLAMA,
        num_layers,
        rope_theta=rope["rope_theta"],
        rope_scaling=scaling,
        tie_embeddings=tied,
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
    )
    return LlamaForCausalLM(config), spec


def _qwen2(num_layers: int) -> tuple[PreTrainedModel, ModelSpec]:
    config = Qwen2Config(
        **_SIZES, num_hidden_layers=num_layers, rope_parameters=_ROPE, tie_word_embeddings=True
    )
    spec = _spec(Architecture.QWEN2, num_layers, attention_bias=True, tie_embeddings=True)
    return Qwen2ForCausalLM(config), spec


def _qwen3(num_layers: int) -> tuple[PreTrainedModel, ModelSpec]:
    config = Qwen3Config(
        **_SIZES,
        num_hidden_layers=num_layers,
        head_dim=16,
        rope_parameters=_ROPE,
        tie_word_embeddings=False,
    )
    return Qwen3ForCausalLM(config), _spec(
        Architecture.QWEN3, num_layers, qk_norm=True, head_dim=16
    )


def _mistral(num_layers: int) -> tuple[PreTrainedModel, ModelSpec]:
    config = MistralConfig(
        **_SIZES, num_hidden_layers=num_layers, rope_parameters=_ROPE, sliding_window=5
    )
    return MistralForCausalLM(config), _spec(
        Architecture.MISTRAL, num_layers, sliding_window_tokens=5
    )


_BUILDERS = {
    "llama": lambda layers: _llama(layers, _ROPE, None),
    "llama-tied": lambda layers: _llama(layers, _ROPE, None, tied=True),
    "llama-bias": lambda layers: _llama(layers, _ROPE, None, bias=True),
    "llama-linear": lambda layers: _llama(
        layers,
        {**_ROPE, "rope_type": "linear", "factor": 2.0},
        RopeScaling(kind="linear", factor=2.0),
    ),
    "llama-llama3": lambda layers: _llama(
        layers, _LLAMA3, RopeScaling(kind="llama3", factor=4.0, original_context_tokens=32)
    ),
    "llama-yarn": lambda layers: _llama(
        layers, _YARN, RopeScaling(kind="yarn", factor=4.0, original_context_tokens=32)
    ),
    "llama-dynamic": lambda layers: _llama(
        layers,
        {**_ROPE, "rope_type": "dynamic", "factor": 2.0},
        RopeScaling(kind="dynamic", factor=2.0),
    ),
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
}
KINDS = (*_BUILDERS, *FAMILIES)
_SLOTS = 64
_places = itertools.count()


def make_runner(
    model: TinyModel,
    span: LayerSpan,
    *,
    num_slots: int = 512,
    device: Device = CPU,
    gather_decodes: bool | None = None,
    cached_rows: int | None = 64,
) -> Runner:
    """A runner that holds `span`. Eight sequences of `make_sequence` find room in it at once."""
    stage = load_stage(
        model.source(),
        model.spec,
        span,
        device,
        num_positions=model.spec.context_tokens_max,
        cached_rows=cached_rows,
        progress=lambda _done, _total: None,
    )
    pool = KvPool(
        num_layers=len(span),
        num_kv_heads=model.spec.num_kv_heads,
        head_dim=model.spec.head_dim,
        num_slots=num_slots,
        device=device,
    )
    return Runner(stage, pool, device, gather_decodes=gather_decodes)


def make_sequence(
    span: LayerSpan,
    *,
    name: str = "r",
    epoch: int = 1,
    kv_tokens: int = 64,
    wire_dtype: DType = DType.FLOAT32,
    sampling: SamplingParams | None = None,
    runs: tuple[Run, ...] = (),
) -> Sequence:
    """A sequence with slots of its own, the next ones in turn where no `runs` are given."""
    sequence = Sequence(
        SequenceOpen(
            request_id=RequestId(name),
            epoch=epoch,
            span=span,
            kv_tokens=kv_tokens,
            wire_dtype=wire_dtype,
            sampling=sampling,
        )
    )
    sequence.runs = runs or ((_SLOTS * (next(_places) % 8), _SLOTS),)
    return sequence


def ids_item(
    sequence: Sequence, position: int, token_ids: list[int], *, sample: bool = False
) -> StepItem:
    opened = sequence.opened
    work = StageWork(
        opened.request_id,
        opened.epoch,
        position,
        len(token_ids),
        token_ids=token_ids,
        sample=sample,
    )
    return StepItem(sequence, work)


def hidden_item(
    sequence: Sequence,
    position: int,
    hidden: bytes,
    num_tokens: int,
    *,
    dtype: DType = DType.FLOAT32,
    sample: bool = False,
) -> StepItem:
    opened = sequence.opened
    work = StageWork(
        opened.request_id,
        opened.epoch,
        position,
        num_tokens,
        hidden=hidden,
        dtype=dtype,
        sample=sample,
    )
    return StepItem(sequence, work)


def run_rows(runner: Runner, items: list[StepItem]) -> list[torch.Tensor]:
    """Hidden rows after each item's span."""
    with torch.inference_mode():
        return runner.forward(items, [runner.input_rows(item) for item in items])
