"""Commands are run for what a rule asks, once a second at most, and for nothing else."""

from node.owner.machine import Machine

MANY = 8


class Machinist:
    """Counts which commands a machine is asked, and answers as logind does."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, *words: str) -> str:
        self.asked.append(words[0])
        return "IdleHint=no\nIdleSinceHint=0\n"


def read(*, wants_user: bool, seconds: float) -> tuple[list[str], float | None]:
    """What was asked, and how long nobody was there, after looks that are spread over `seconds`."""
    ask = Machinist()
    times = iter([100.0 + seconds * number / MANY for number in range(MANY)])
    machine = Machine(
        None, wants_user=wants_user, wants_screen=False, unix_s=lambda: next(times), ask=ask
    )
    idle_s = [machine.read().user_idle_s for _ in range(MANY)][-1]
    return ask.asked, idle_s


def test_a_node_whose_owner_set_no_rule_for_users_runs_no_command() -> None:
    assert read(wants_user=False, seconds=8.0) == ([], None)


def test_a_rule_for_users_is_asked_about_once_a_second() -> None:
    assert read(wants_user=True, seconds=0.9) == (["loginctl"], 0.0)
    asked, _ = read(wants_user=True, seconds=2.0 * MANY)
    assert asked == ["loginctl"] * MANY
