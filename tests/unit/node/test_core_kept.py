"""What a last stage keeps for a gateway that was away."""

from node.core import effects as ef
from node.core import events as ev
from node.core.kept import KEEP_MS, KeptRoutes
from node.core.messages import KeptRoute, Token
from tests.unit.node.story import Outcome, Story, only, opened, rid


def kept_by(story: Story) -> list[KeptRoute]:
    """What the node says to a gateway that has just come back."""
    story.tell(ev.GatewayLinkDown())
    effects = story.tell(ev.GatewayLinkUp())
    sent = [effect.message for effect in only(effects, ef.SendToGateway)]
    return [message for message in sent if isinstance(message, KeptRoute)]


def token(position: int, *, request: str = "r1", epoch: int = 1) -> Token:
    return Token(rid(request), epoch, position, position)


def test_tokens_are_kept_until_the_gateway_is_done_with_them() -> None:
    kept = KeptRoutes()
    kept.opened(opened(2, prompt_tokens=4))
    for position in (4, 5, 6):
        kept.drew(token(position))
    kept.drew(token(7, epoch=9))  # of no route here
    (message,) = kept.messages()
    assert (message.position, message.is_running) == (4, True)
    assert [each.token_id for each in message.tokens] == [4, 5, 6]
    kept.ended(rid(), 1)
    (message,) = kept.messages()
    assert not message.is_running
    kept.forget(rid(), 0)
    assert len(kept) == 1
    kept.forget(rid(), 1)
    assert len(kept) == 0


def test_what_ended_is_kept_for_a_while_only() -> None:
    kept = KeptRoutes()
    kept.opened(opened(2))
    kept.sweep(0)
    kept.ended(rid(), 1)
    kept.sweep(1_000)
    kept.sweep(1_000 + KEEP_MS - 1)
    assert len(kept) == 1
    kept.sweep(1_000 + KEEP_MS)
    assert len(kept) == 0


def test_long_answers_come_in_pieces_of_which_the_last_says_that_it_is_over() -> None:
    kept = KeptRoutes()
    kept.opened(opened(2, prompt_tokens=4))
    for position in range(4, 1_100):
        kept.drew(token(position))
    kept.ended(rid(), 1)
    pieces = list(kept.messages())
    assert [piece.position for piece in pieces] == [4, 516, 1_028]
    assert [piece.is_running for piece in pieces] == [True, True, False]
    assert [t.position for piece in pieces for t in piece.tokens] == list(range(4, 1_100))


def test_where_too_much_is_kept_what_ended_first_goes_first() -> None:
    kept = KeptRoutes(tokens_max=3, routes_max=3)
    for name in ("r1", "r2", "r3"):
        kept.opened(opened(2, request=name))
        kept.drew(token(4, request=name))
    kept.ended(rid("r2"), 1)
    kept.drew(token(5, request="r3"))
    assert {message.request_id for message in kept.messages()} == {"r1", "r3"}
    kept.opened(opened(2, request="r4"))
    kept.opened(opened(2, request="r5"))
    assert {message.request_id for message in kept.messages()} == {"r3", "r4", "r5"}


def test_a_gateway_that_comes_back_is_told_and_a_close_forgets() -> None:
    story = Story(2)
    story.open()
    story.step(Outcome(0, 4, token_id=11))
    (message,) = kept_by(story)
    assert (message.request_id, message.position) == ("r1", 4)
    assert [each.token_id for each in message.tokens] == [11]
    story.close(sender=None)
    assert kept_by(story) == []


def test_other_stages_say_that_they_hold_the_request() -> None:
    story = Story(1)
    story.open()
    (message,) = kept_by(story)
    assert (message.request_id, message.tokens, message.is_running) == ("r1", (), True)
