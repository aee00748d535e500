"""What an owner may decide about a node."""

from dataclasses import dataclass, field
from pathlib import Path

from node.owner.limits import OwnerLimits
from node.owner.settings import OwnerSettings
from node.ports import MEASURE_S
from plait.types import DRAFTS_MAX, DType


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Settings of one node.

    Attributes:
        coordinator: HOST[:PORT] of the public door; empty: the token's, or where it enrolled.
        token: enrolment token; needed the first time only.
        token_file: where the token will be found instead, soon; not looked at once enrolled.
        home: folder of this node's papers.
        display_name: what the operator sees.
        listen: host:port for neighbours; port 0 chooses a free one.
        advertise: host or host:port where neighbours reach this node; empty: where the
            coordinator sees it.
        memory_bytes: cap on weights, KV and buffers together; None: what is free.
        num_threads: of the engine; None: torch's choice.
        device: "auto", "cpu", "cuda" or "cuda:N".
        compute_dtype: None: bfloat16 on a GPU, float32 on a CPU.
        weights: formats that the owner agrees to: "auto" (the network's), "fp32", "fp16", "int8"
            or "int4".
        kv_tokens_max: most KV slots to keep.
        kv_dtype: what they are kept in: "auto", "native" (the compute dtype) or "int8".
        chunks_prompts: cut prompts so that tokens of other requests do not wait for them.
        drafts_max: guessed tokens that may go along with one, 0 for none.
        draft_model: small model that guesses tokens where this node is the first stage.
        is_offline: weights come from neighbours and this machine alone, never from a hub.
        has_telemetry: whether to publish figures over MQTT.
        tensor_parallel: ranks that hold the node's stage together; 1: no group.
        rank_listen: HOST:PORT where ranks of other machines join; empty: ranks are processes here.
        secret_file: holds what those ranks have to know.
        measure_s: seconds of steps that are timed when the device and each model are measured.
        owner: limits and rules of `node.toml`, and where each was set.
        drain_ms: how long running requests may take to end when the node is stopped.
    """

    home: Path
    coordinator: str = ""
    token: str | None = None
    token_file: Path | None = None
    display_name: str = ""
    listen: str = "0.0.0.0:0"
    advertise: tuple[str, ...] = ()
    memory_bytes: int | None = None
    num_threads: int | None = None
    device: str = "auto"
    compute_dtype: DType | None = None
    weights: str = "auto"
    kv_tokens_max: int = 32_768
    kv_dtype: str = "auto"
    chunks_prompts: bool = True
    drafts_max: int = DRAFTS_MAX
    draft_model: str = ""
    is_offline: bool = False
    has_telemetry: bool = True
    drain_ms: int = 10_000
    measure_s: float = MEASURE_S
    tensor_parallel: int = 1
    rank_listen: str = ""
    secret_file: Path | None = None
    owner: OwnerSettings = field(
        default_factory=lambda: OwnerSettings(limits=OwnerLimits(), sources={})
    )
