"""TLS files for an operator's own MQTT broker, issued by the network's authority."""

from pathlib import Path

from plait import log
from plait.clock import Clock
from plait.config import write_private
from plait.crypto.authority import CertificateAuthority, check_issued_by, server_names
from plait.crypto.certificates import TlsPair, certificate_names, renew_at_unix_ms
from plait.crypto.files import read_private
from plait.errors import ConfigError

_log = log.get("certificates")


def write_broker_certificates(
    ca: CertificateAuthority, folder: Path, names: tuple[str, ...], clock: Clock
) -> None:
    """ca.pem, broker.pem and broker.key (0600), for `names` alone.

    What is there stays, unless it is damaged, of another network, for other names, or past two
    thirds of its life. Raises ConfigError where the folder cannot be written.
    """
    authority_path, certificate_path = folder / "ca.pem", folder / "broker.pem"
    key_path = folder / "broker.key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not authority_path.exists() or authority_path.read_bytes() != ca.certificate_pem:
            authority_path.write_bytes(ca.certificate_pem)
        if _is_fit(certificate_path, key_path, ca, names, clock):
            return
        pair = ca.issue_broker(names)
        write_private(key_path, pair.key_pem)
        write_private(certificate_path, pair.certificate_pem)
    except OSError as error:
        raise ConfigError(f"--broker-certs {folder}: {error.strerror}") from error
    _log.info("broker_certificate_issued", folder=str(folder), names=list(names))


def _is_fit(
    certificate_path: Path,
    key_path: Path,
    ca: CertificateAuthority,
    names: tuple[str, ...],
    clock: Clock,
) -> bool:
    try:
        certificate_pem = certificate_path.read_bytes()
        TlsPair(certificate_pem=certificate_pem, key_pem=read_private(key_path)).check()
        check_issued_by(certificate_pem, ca.certificate_pem)
        has_names = certificate_names(certificate_pem) == frozenset(server_names(names))
    except (OSError, ConfigError):
        return False
    return has_names and clock.unix_ms() < renew_at_unix_ms(certificate_pem)
