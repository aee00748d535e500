"""Server certificates that change while the server runs."""

import threading
from collections.abc import Callable
from typing import Protocol

import grpc


class CertificateAndKey(Protocol):
    """A certificate chain, leaf first, and its private key. Both PEM."""

    @property
    def certificate_pem(self) -> bytes: ...

    @property
    def key_pem(self) -> bytes: ...


def rotating_credentials(
    current: Callable[[], CertificateAndKey], *, client_ca_pem: bytes | None = None
) -> grpc.ServerCredentials:
    """Credentials that ask `current` at each handshake, from a thread of gRPC's; open streams keep
    what they began with.

    With `client_ca_pem`, clients must show a certificate from that authority.
    """
    rotation = Rotation(current, client_ca_pem=client_ca_pem)
    return grpc.dynamic_ssl_server_credentials(
        rotation.first,
        rotation.fetch,  # type: ignore[arg-type]  # None means unchanged; the stubs forget it
        require_client_authentication=client_ca_pem is not None,
    )


class Rotation:
    """Hands gRPC a configuration only where the certificate is another one than before.

    At each configuration gRPC swaps, and frees, what handshakes on other threads may be using:
    handed out at every handshake, that crashed the process within a few hundred connections.
    """

    def __init__(
        self, current: Callable[[], CertificateAndKey], *, client_ca_pem: bytes | None
    ) -> None:
        pair = current()
        self._current = current
        self._client_ca_pem = client_ca_pem
        self._shown = pair.certificate_pem
        self._lock = threading.Lock()
        self.first = self._configuration(pair)

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, once per new certificate; None: as before."""
        with self._lock:
            pair = self._current()
            if pair.certificate_pem == self._shown:
                return None
            self._shown = pair.certificate_pem
            return self._configuration(pair)

    def _configuration(self, pair: CertificateAndKey) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(pair.key_pem, pair.certificate_pem)], root_certificates=self._client_ca_pem
        )
