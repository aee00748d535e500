"""Says before any download what would keep this machine from serving, and what to do about it."""

from typing import Final

from node.agent.identity import has_credentials, load_credentials
from node.agent.preflight import Asker, Found, ask
from node.doctor_checks import Check, Verdict, failed, passed, skipped
from node.doctor_machine import Patient, own_checks
from plait.crypto.authority import BACKDATED_S
from plait.crypto.certificates import COORDINATOR_NAME
from plait.crypto.identity import NodeIdentity
from plait.crypto.tokens import JoinToken
from plait.errors import ConfigError, PlaitError
from plait.wire.reach import Address, check_reachable

SKEW_MS: Final = 60_000
"""Tickets and certificates bear no more (decision 33)."""


async def examine(patient: Patient) -> list[Check]:
    """All checks in order; those that an earlier one makes impossible are skipped."""
    checks: list[Check] = []
    try:
        address, ca_pem, asker = _who(patient)
    except ConfigError as error:
        checks.append(failed("token", error))
        return [*checks, *own_checks(patient, None)]
    reached = await _reach(patient, address, ca_pem)
    checks.append(reached)
    found: Found | None = None
    if reached.verdict is Verdict.OK:
        found, asked = await _ask(patient, address, ca_pem, asker)
        checks += asked
    else:
        checks += [skipped(name) for name in ("token", "clock", "ports")]
    return [*checks, *own_checks(patient, found)]


def _who(patient: Patient) -> tuple[Address, bytes, Asker]:
    """Where to ask and as whom. Raises ConfigError."""
    if patient.token is not None:
        token = JoinToken.parse(patient.token)
        address = Address.parse(patient.coordinator or token.address)
        return address, token.ca_pem, Asker(token=token, identity=None)
    if not has_credentials(patient.home):
        raise ConfigError(
            "there is neither a token nor a node that is enrolled here: ask the operator for a "
            "token (`plait token create`), then `plait node doctor COORDINATOR --token TOKEN`",
            reason="not_enrolled",
        )
    credentials = load_credentials(patient.home)
    address = Address.parse(patient.coordinator or credentials.coordinator_address)
    identity: NodeIdentity = credentials.identity
    return address, credentials.ca_pem, Asker(token=None, identity=identity)


async def _reach(patient: Patient, address: Address, ca_pem: bytes) -> Check:
    try:
        await check_reachable(
            address, ca_pem=ca_pem, target_name=COORDINATOR_NAME, limit_s=patient.reach_s
        )
    except PlaitError as error:
        return failed("coordinator", error)
    return passed("coordinator", f"{address} answers, and it is this network's")


async def _ask(
    patient: Patient, address: Address, ca_pem: bytes, asker: Asker
) -> tuple[Found | None, list[Check]]:
    listen, port_error = patient.listen, ""
    try:
        try:
            found = await ask(
                address, ca_pem, asker, patient.clock, listen=listen, now_s=patient.now_s
            )
        except OSError as error:
            port_error = error.strerror or str(error)
            found = await ask(
                address, ca_pem, asker, patient.clock, listen=None, now_s=patient.now_s
            )
    except PlaitError as error:
        name = "coordinator" if error.code == "no_preflight" else "token"
        return None, [failed(name, error), skipped("clock"), skipped("ports")]
    return found, [
        passed("token", "it lets this machine in"),
        _clock(found),
        _ports(found, listen, port_error),
    ]


def _clock(found: Found) -> Check:
    ahead_s = found.skew_ms / 1e3
    if abs(found.skew_ms) <= SKEW_MS:
        return passed("clock", f"within {abs(ahead_s):.1f} s of the coordinator's")
    way = "ahead of" if ahead_s > 0 else "behind"
    # Tickets are checked by the coordinator's clock, certificates by this one.
    is_borne = abs(ahead_s) < BACKDATED_S
    return Check(
        name="clock",
        verdict=Verdict.WARN if is_borne else Verdict.FAIL,
        code="clock_skew",
        found=f"{abs(ahead_s):.0f} s {way} the coordinator's",
        help="set it by the network: timedatectl set-ntp true (Linux), or the system's settings",
    )


def _ports(found: Found, listen: tuple[str, int] | None, port_error: str) -> Check:
    host, port = listen if listen is not None else ("", 0)
    if port_error:
        return Check(
            name="ports",
            verdict=Verdict.FAIL,
            code="port_taken",
            found=f"{host}:{port} cannot be listened on: {port_error}",
            help="choose another port with --listen HOST:PORT",
        )
    if found.dial_back_error is None:
        return skipped("ports", "the node that runs here has the port")
    if not found.dial_back_error:
        return passed("ports", f"neighbours reach this machine at {found.seen_host}")
    which = f"TCP port {port}" if port else "a TCP port of your choice (--listen 0.0.0.0:PORT)"
    return Check(
        name="ports",
        verdict=Verdict.WARN,
        code="not_reachable",
        found=f"from outside, {found.seen_host} cannot be dialled: {found.dial_back_error}",
        help=f"it serves beside neighbours that can be dialled; to be one, forward {which} to this "
        "machine in the router and let it through the firewall",
    )
