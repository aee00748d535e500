"""gRPC gets a certificate once; handing it out at every handshake crashed the process."""

from plait.clock import ManualClock
from plait.crypto.authority import CertificateAuthority
from plait.wire.rotation import Rotation


def test_a_certificate_is_handed_out_once() -> None:
    ca = CertificateAuthority.create(ManualClock())
    shown = [ca.issue_server(["a.example"])]
    rotation = Rotation(lambda: shown[-1], client_ca_pem=ca.certificate_pem)
    assert rotation.first is not None
    assert [rotation.fetch() for _ in range(3)] == [None] * 3
    shown.append(ca.issue_server(["a.example"]))
    assert rotation.fetch() is not None
    assert rotation.fetch() is None
