"""Who is served when many ask: keys, classes, and prompts that begin alike."""

from coordinator.core import effects as fx
from coordinator.core import events as ev
from coordinator.core.state import Limits
from plait.types import NodeId
from scheduler.selection.decision import How
from scheduler.selection.fairness import SloClass
from tests.unit.core.stories import Story, only


def serve(story: Story, limit: int) -> list[str]:
    """Finish what is open, again and again; who was served, in order."""
    served: list[str] = []
    for _ in range(limit):
        running = [r for r in story.core.state.requests.values() if r.pipeline_id is not None]
        if not running:
            break
        for request in running:
            served.append(request.request_id)
            story.now_ms += 1_000
            story.tell(Story.beat("a"))
            story.finish(request.request_id, request.epoch, num=96)
    return served


def test_two_hundred_requests_of_one_key_do_not_delay_anothers_single_one() -> None:
    story = Story(Limits(kv_tokens_min=1024, wait_limit_ms=600_000))
    story.start("a", memory_mib=2_000)
    for at in range(200):
        story.submit(f"many{at}", key="many", prompt=4_000, new=96)
    serve(story, 5)
    story.submit("single", key="single", prompt=4_000, new=96)
    # The one that runs, and one more whose key has paid as little: whoever came first.
    assert "single" in serve(story, 3)


def test_a_key_that_comes_back_saved_up_nothing() -> None:
    story = Story(Limits(kv_tokens_min=1024, wait_limit_ms=600_000))
    story.start("a", memory_mib=2_000)
    for at in range(20):
        story.submit(f"many{at}", key="many", prompt=4_000, new=96)
    serve(story, 10)
    for at in range(10):
        story.submit(f"late{at}", key="late", prompt=4_000, new=96)
    turns = serve(story, 8)
    assert 3 <= sum(name.startswith("late") for name in turns) <= 5


def test_batch_work_never_starves_under_people_who_keep_coming() -> None:
    story = Story(Limits(kv_tokens_min=1024, ageing_ms=15_000, wait_limit_ms=600_000))
    story.start("a", memory_mib=2_000)
    story.submit("first", prompt=4_000, new=96)
    story.submit("batch", key="cron", slo=SloClass.BATCH, prompt=4_000, new=96)
    began_ms, served = story.now_ms, list[str]()
    for at in range(60):
        # Every second another key asks, and one request is served.
        story.submit(f"p{at}", key=f"k{at}", prompt=4_000, new=96)
        served += serve(story, 1)
        if "batch" in served:
            break
    waited_ms = story.now_ms - began_ms
    assert "batch" in served and 15_000 <= waited_ms <= 20_000


def pair(*, reuses_prefixes: bool) -> Story:
    story = Story()
    for name in ("a", "b"):
        story.join(name, memory_mib=2_000, reuses_prefixes=reuses_prefixes)
    story.settle(beating=("a", "b"))
    return story


def ask(story: Story, name: str, blocks: tuple[int, ...]) -> NodeId:
    """Submit, run to the end; where it ran."""
    opened = only(story.submit(name, prompt=200, prefix_blocks=blocks), fx.OpenRoute)
    story.finish(name)
    return opened[0].route[0].node_id


def test_a_prompt_follows_its_beginning_to_the_node_that_keeps_it() -> None:
    story = pair(reuses_prefixes=True)
    blocks = tuple(range(1, 11))
    first = ask(story, "r0", blocks)
    assert [ask(story, f"r{at}", blocks) for at in range(1, 5)] == [first] * 4
    views = {r.request_id: r for r in story.core.view(story.now_ms).requests}
    assert "holds the prompt's first 160 tokens" in views["r1"].decisions[-1].why
    assert "holds" not in views["r0"].decisions[-1].why


def test_a_crowded_node_is_left_even_by_those_whose_beginning_it_keeps() -> None:
    story = pair(reuses_prefixes=True)
    blocks = tuple(range(1, 11))
    ask(story, "r0", blocks)
    places = set()
    for at in range(1, 9):  # none of them ends
        opened = only(story.submit(f"r{at}", prompt=200, prefix_blocks=blocks), fx.OpenRoute)
        places.add(opened[0].route[0].node_id)
    assert len(places) == 2


def test_where_nodes_keep_nothing_beginnings_change_nothing() -> None:
    def turns(blocks: tuple[int, ...]) -> list[NodeId]:
        story = pair(reuses_prefixes=False)
        places = [ask(story, f"r{at}", blocks) for at in range(6)]
        assert story.core.state.prefixes == {}
        return places

    assert turns(tuple(range(1, 11))) == turns(())


def test_a_node_that_was_started_anew_keeps_nothing() -> None:
    story = pair(reuses_prefixes=True)
    blocks = tuple(range(1, 11))
    held_by = ask(story, "r0", blocks)
    story.tell(ev.NodeDetached(node_id=held_by, incarnation=1))
    story.wait(5_000, beating=tuple({"a", "b"} - {held_by}))
    story.join(held_by, incarnation=2, memory_mib=2_000, reuses_prefixes=True)
    story.settle(beating=("a", "b"))
    opened = only(story.submit("r1", prompt=200, prefix_blocks=blocks), fx.OpenRoute)
    assert opened
    decision = story.core.state.requests[opened[0].request_id].decisions[-1].decision
    assert decision is not None and decision.how is not How.AFFINITY


def test_a_key_of_weight_three_is_served_three_times_as_much() -> None:
    story = Story(Limits(kv_tokens_min=1024, wait_limit_ms=600_000))
    story.start("a", memory_mib=2_000)
    story.tell(ev.KeyWeighed(key_id="heavy", weight=3.0))
    for at in range(30):
        story.submit(f"heavy{at}", key="heavy", prompt=4_000, new=96)
        story.submit(f"plain{at}", key="plain", prompt=4_000, new=96)
    turns = serve(story, 24)
    heavy = sum(name.startswith("heavy") for name in turns)
    assert 2.5 <= heavy / (len(turns) - heavy) <= 3.5


def test_what_was_paid_by_one_weight_is_given_back_by_it() -> None:
    story = Story(Limits(kv_tokens_min=1024, wait_limit_ms=600_000))
    story.start("a", memory_mib=2_000)
    story.tell(ev.KeyWeighed(key_id="k", weight=0.5))
    story.submit("r", prompt=100, new=96)
    assert story.core.state.fairness.paid("k") == 2 * (100 + 2 * 96)
    story.tell(ev.KeyWeighed(key_id="k", weight=100.0))
    story.finish("r", num=1)
    assert story.core.state.fairness.paid("k") == 2 * (100 + 2)
