"""The plan in force, and a look at the next one before anything moves."""

from fastapi import Request

from coordinator.core.events import ReplanAsked
from coordinator.dashboard import plan, whatif
from coordinator.dashboard.frame import Frame
from coordinator.dashboard.live import Action
from coordinator.dashboard.markup import page_head
from coordinator.dashboard.pages.actions import act_on_network
from coordinator.dashboard.sources import Sources
from plait import log

_log = log.get("dashboard")


async def plan_page(sources: Sources, request: Request) -> None:
    """What a preview was made of is remembered: it may be applied while that has not changed."""
    frame = Frame(sources, request, at="plan")
    previewed: int | None = None

    async def do(action: Action) -> None:
        nonlocal previewed
        match action.name:
            case "preview":
                previewed, markup = None, ""
                shown.show(plan.draw_working())
                try:
                    markup, previewed = await _preview(sources, action)
                finally:
                    shown.show(markup)
            case "apply":
                _apply(sources, frame, previewed)
                previewed = None
                shown.show("")
            case _:
                await act_on_network(frame, sources, action)

    head, asked, shown, in_force = frame.regions(4, do)
    head.show(page_head("Plan", note="Who holds which layers is decided by a plan."))
    asked.show(plan.draw_what_if_form())

    async def tick() -> None:
        in_force.show(sources.snapshot.drawn("plan in force", plan.draw_plan_in_force))

    await frame.run(tick)


async def _preview(sources: Sources, action: Action) -> tuple[str, int | None]:
    """Raises InvalidRequestError (a node that is not here), OverloadedError (one at a time)."""
    view = sources.views.view()
    names = {node.node_id: node.display_name for node in view.nodes}
    supposed = whatif.parse_supposed(action.fields, names)
    problem = sources.previewer.question(may_move_busy=supposed.may_move_busy)
    if problem is None:
        return plan.draw_nothing_may_move(), None
    problem = whatif.suppose(problem, supposed)
    preview = await sources.previewer.preview(problem)
    changes = whatif.changes_of(problem, preview.plan) if preview.plan is not None else []
    drawn = plan.draw_preview(preview, problem, supposed, changes, sources.snapshot.current())
    _log.info("dashboard_previewed", changes=len(changes))
    return drawn, whatif.fingerprint(view) if supposed.is_as_things_are else None


def _apply(sources: Sources, frame: Frame, previewed: int | None) -> None:
    if previewed is None or previewed != whatif.fingerprint(sources.views.view()):
        frame.say("Nothing was done: the network has changed since. Preview again.", tone="warn")
        return
    sources.inbox.post(ReplanAsked())
    frame.say("The plan is being made and applied; the map and the events show what moves.")
    _log.info("dashboard_action", action="apply")
