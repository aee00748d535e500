"""What is advised where memory lacks: who does it is served, and who does one less is not."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from plait.cli.node import parse_bytes
from plait.errors import UnavailableError
from plait.types import DType, ModelId
from scheduler.allocation import AllocationProblem, allocate, allocate_greedy
from scheduler.allocation.remedy import shortages
from scheduler.allocation.shortage import MIB, Shortage, gib, printable_down, printable_up
from tests.kit.examples import few_and_many
from tests.unit.scheduler.pools import node, problem, tiny_model

TINY = ModelId("tiny")


def serves(pool: AllocationProblem, *, is_ilp: bool = False) -> bool:
    try:
        plan = allocate(pool) if is_ilp else allocate_greedy(pool)
    except UnavailableError:
        return False
    return any(p.model_id == TINY for p in plan.placements)


def with_nodes(pool: AllocationProblem, count: int, said: str, dtype: DType) -> AllocationProblem:
    """The operator starts so many nodes with the memory that was printed."""
    mib = parse_bytes(said) / MIB
    new = (node(f"z{i}", memory_mib=mib, dtype=dtype) for i in range(count))
    return replace(pool, nodes=(*pool.nodes, *new))


@st.composite
def poor_pools(draw: st.DrawFn) -> AllocationProblem:
    """Pools too small for a model, some of whose nodes hold layers already."""
    spec = tiny_model(
        draw(st.integers(2, 40)),
        hidden_size=draw(st.sampled_from([576, 1152])),
        vocab_size=draw(st.sampled_from([256, 49152])),
    )
    dtype = draw(st.sampled_from([DType.FLOAT32, DType.BFLOAT16]))
    memory = draw(st.sampled_from([(20, 90), (60, 300), (200, 300), (900, 1500)]))
    nodes = [
        node(
            f"n{i}",
            memory_mib=draw(st.integers(*memory)),
            layer_ms=draw(st.sampled_from([0.5, 3.0, None])),
            rtt_ms=draw(st.sampled_from([1.0, 150.0])),
            dtype=dtype,
        )
        for i in range(draw(st.integers(0, 6)))
    ]
    pool = problem(*nodes, models=(spec,), kv_tokens_min=draw(st.sampled_from([64, 1024])))
    if not draw(st.booleans()):
        return pool
    # A network that served once, of which most have left.
    more = (node(f"x{i}", memory_mib=memory[1], dtype=dtype) for i in range(40))
    try:
        plan = allocate_greedy(replace(pool, nodes=(*nodes, *more)))
    except UnavailableError:
        return pool
    stayed = [p for p in plan.placements if p.node_id.startswith("n") and draw(st.booleans())]
    return replace(pool, held=tuple(stayed))


def lacking(pool: AllocationProblem) -> Shortage:
    assume(not serves(pool))
    return shortages(pool, None)[0]


@few_and_many(10, 40, poor_pools())
def test_doing_what_is_advised_is_enough_and_one_less_is_not(pool: AllocationProblem) -> None:
    said = lacking(pool)
    dtype = pool.nodes[0].compute_dtype if pool.nodes else DType.FLOAT32
    one, count, size = said.one_node_bytes, said.num_nodes, said.node_bytes
    assert one is not None or count is not None
    if one is not None:
        assert serves(with_nodes(pool, 1, gib(one), dtype))
        assert not serves(with_nodes(pool, 1, gib(printable_down(one - 1)), dtype))
    if count is not None and size is not None:
        assert serves(with_nodes(pool, count, gib(size), dtype))
        assert not serves(with_nodes(pool, count - 1, gib(size), dtype))


@few_and_many(6, 20, poor_pools(), st.data())
def test_it_is_enough_where_some_nodes_cannot_be_moved(
    pool: AllocationProblem, data: st.DataObject
) -> None:
    busy = tuple(p.node_id for p in pool.held if data.draw(st.booleans()))
    pool = replace(pool, fixed=busy)
    said = lacking(pool)
    dtype = pool.nodes[0].compute_dtype if pool.nodes else DType.FLOAT32
    if said.one_node_bytes is not None:
        assert serves(with_nodes(pool, 1, gib(said.one_node_bytes), dtype))
    if said.num_nodes is not None and said.node_bytes is not None:
        assert serves(with_nodes(pool, said.num_nodes, gib(said.node_bytes), dtype))


@few_and_many(4, 20, poor_pools())
def test_the_solver_serves_as_well(pool: AllocationProblem) -> None:
    said = lacking(pool)
    dtype = pool.nodes[0].compute_dtype if pool.nodes else DType.FLOAT32
    if said.one_node_bytes is not None:
        assert serves(with_nodes(pool, 1, gib(said.one_node_bytes), dtype), is_ilp=True)
    if said.num_nodes is not None and said.node_bytes is not None:
        larger = with_nodes(pool, said.num_nodes, gib(said.node_bytes), dtype)
        assert serves(larger, is_ilp=True)


@given(st.integers(1, 1 << 42))
def test_sizes_are_rounded_to_what_can_be_typed_in(num_bytes: int) -> None:
    up, down = printable_up(num_bytes), printable_down(num_bytes)
    assert down <= num_bytes <= up
    assert printable_up(up) == up == printable_down(up)
    assert parse_bytes(gib(num_bytes)) == up == parse_bytes(gib(up))
    assert up - num_bytes <= max(MIB, (1 << 30) // 10)
