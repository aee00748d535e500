"""One stream to which something happens on its way, and what its client sees of that."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.cli.local_network import LocalNetwork
from plait.sdk import Client, Completion, Hop, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """`pause_s` is the longest time without a token from the disturbance on."""

    ids: tuple[int, ...]
    pause_s: float
    whole: Completion


def greedy(client: Client, prompt: Sequence[int], num_tokens: int) -> Stream:
    """An answer of just so many tokens, as it comes."""
    return client.stream(list(prompt), max_tokens=num_tokens, temperature=0.0, ignore_eos=True)


def ask(client: Client, prompt: Sequence[int], num_tokens: int) -> Completion:
    """The whole of it, undisturbed."""
    return greedy(client, prompt, num_tokens).result


def disturb(
    client: Client,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    at_token: int,
    then: Callable[[Stream], None],
) -> Disturbed:
    """The same answer, to which `then` happens once `at_token` tokens are here."""
    stream = greedy(client, prompt, num_tokens)
    ids: list[int] = []
    last_s: float | None = None
    pause_s = 0.0
    for delta in stream:
        now_s = time.perf_counter()
        ids += delta.token_ids
        if last_s is not None:
            pause_s = max(pause_s, now_s - last_s)
            last_s = now_s
        elif len(ids) >= at_token:
            last_s = now_s
            then(stream)
    return Disturbed(ids=tuple(ids), pause_s=pause_s, whole=stream.result)


def pid_of(network: LocalNetwork, hop: Hop) -> int:
    """Of the process that runs a hop."""
    return network.nodes[hop.display_name].pid


def bury(network: LocalNetwork, *names: str) -> None:
    """Forget nodes that were killed on purpose."""
    for name in names:
        network.children.forget(network.nodes.pop(name))


def is_idle(network: LocalNetwork) -> bool:
    """Whether nothing waits and nobody holds KV."""
    view = network.view()
    return view.num_queued == 0 and all(node.kv_tokens_reserved == 0 for node in view.nodes)
