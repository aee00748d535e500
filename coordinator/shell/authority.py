"""The network's keys on the coordinator's disk: made once, then loaded; 0700 and 0600."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from plait import log
from plait.clock import Clock
from plait.config import write_private
from plait.crypto.authority import CertificateAuthority, check_issued_by, server_names
from plait.crypto.certificates import (
    COORDINATOR_NAME,
    TlsPair,
    certificate_names,
    expires_unix_ms,
    renew_at_unix_ms,
)
from plait.crypto.files import private_dir, read_private
from plait.crypto.identity import load_ed25519, new_ed25519, save_private_key
from plait.crypto.tickets import TicketSigner
from plait.errors import ConfigError
from plait.wire.rotation import rotating_credentials

_log = log.get("authority")
_CA_CERTIFICATE: Final = "ca.crt"
_CA_KEY: Final = "ca.key"
_TICKET_KEY: Final = "ticket.key"
_SERVER_CERTIFICATE: Final = "server.crt"
_SERVER_KEY: Final = "server.key"


class Authority:
    """The coordinator's keys. `names` are the host names and IP addresses it is dialled by."""

    def __init__(
        self,
        *,
        folder: Path,
        clock: Clock,
        ca: CertificateAuthority,
        tickets: TicketSigner,
        names: Sequence[str] = (),
    ) -> None:
        self.ca = ca
        self.tickets = tickets
        self.network_id = ca.network_id
        self.ca_pem = ca.certificate_pem
        self._folder = folder
        self._clock = clock
        self._names = server_names((COORDINATOR_NAME, *names))
        self._lock = threading.Lock()
        self._server = self._load_server()

    @classmethod
    def open(cls, folder: Path, clock: Clock, *, names: Sequence[str] = ()) -> "Authority":
        """Load the keys in `folder`, or make them where there are none.

        Raises ConfigError: keys that are missing in part, corrupt, open to others or expired.
        """
        private_dir(folder)
        ca = _load_or_create_ca(folder, clock)
        ticket_key = folder / _TICKET_KEY
        if not ticket_key.exists():
            save_private_key(ticket_key, new_ed25519())
        tickets = TicketSigner(load_ed25519(ticket_key))
        return cls(folder=folder, clock=clock, ca=ca, tickets=tickets, names=names)

    def server(self) -> TlsPair:
        """The coordinator's certificate and key; issued afresh at two thirds of its life."""
        with self._lock:
            if self._is_due(self._server):
                self._server = self._issue_server()
            return self._server

    def tls_credentials(self) -> grpc.ServerCredentials:
        """For the public port. Follows renewals without a restart; open streams go on."""
        return rotating_credentials(self.server)

    def mtls_credentials(self) -> grpc.ServerCredentials:
        """For the node port: certificates of this network only. Follows renewals."""
        return rotating_credentials(self.server, client_ca_pem=self.ca_pem)

    def _load_server(self) -> TlsPair:
        certificate, key = self._folder / _SERVER_CERTIFICATE, self._folder / _SERVER_KEY
        if not (certificate.exists() and key.exists()):
            return self._issue_server()
        try:
            pair = TlsPair(certificate_pem=certificate.read_bytes(), key_pem=read_private(key))
            pair.check()
            check_issued_by(pair.certificate_pem, self.ca_pem)
        except ConfigError as error:
            _log.warning("server_certificate_replaced", because=error.message)
            return self._issue_server()
        has_names = certificate_names(pair.certificate_pem) == frozenset(self._names)
        return pair if has_names and not self._is_due(pair) else self._issue_server()

    def _issue_server(self) -> TlsPair:
        pair = self.ca.issue_server(self._names)
        write_private(self._folder / _SERVER_KEY, pair.key_pem)
        write_private(self._folder / _SERVER_CERTIFICATE, pair.certificate_pem)
        _log.info("server_certificate_issued", names=list(self._names))
        return pair

    def _is_due(self, pair: TlsPair) -> bool:
        return self._clock.unix_ms() >= renew_at_unix_ms(pair.certificate_pem)


def _load_or_create_ca(folder: Path, clock: Clock) -> CertificateAuthority:
    certificate, key = folder / _CA_CERTIFICATE, folder / _CA_KEY
    if not certificate.exists() and not key.exists():
        ca = CertificateAuthority.create(clock)
        write_private(key, ca.key_pem())
        write_private(certificate, ca.certificate_pem)
        _log.info("network_created", network_id=ca.network_id)
        return ca
    if not certificate.exists() or not key.exists():
        lost = key if certificate.exists() else certificate
        raise ConfigError(
            f"{lost} is missing: restore it from a backup, or move {folder} away to found a new "
            "network (every node must then enrol again)",
            reason="authority_incomplete",
        )
    try:
        ca = CertificateAuthority.load(
            certificate_pem=certificate.read_bytes(), key_pem=read_private(key), clock=clock
        )
    except ConfigError as error:
        if error.code != "bad_config":
            raise
        raise ConfigError(
            f"the network's keys in {folder} cannot be used: {error.message}",
            reason="authority_corrupt",
        ) from None
    if clock.unix_ms() >= expires_unix_ms(ca.certificate_pem):
        raise ConfigError(
            f"the network's authority in {folder} has expired, or this machine's clock is wrong",
            reason="authority_expired",
        )
    return ca
