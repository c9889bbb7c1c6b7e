"""TLS 1.3 over memory, with pinned certificates on both sides.

The session runs between two `MemoryBIO`s, and the link moves the bytes. That way one and the
same link code bounds, times and reports a connection from its first byte, on any event loop: a
stranger who sends garbage in place of a handshake is named, where the loop's own TLS would only
log it.

The trust store holds exactly the certificates of the cluster file. Each is self-signed and none
may sign another, so a chain has length one. The link then compares the certificate with the one
that is pinned for the number the peer claims. Host names prove nothing here and are not checked.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from quorate.core.cluster import Cluster
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.ids import MemberId
from quorate.crypto.identity import Identity


class Certificates:
    """The contexts of both directions, and whose certificate is whose."""

    def __init__(self, cluster: Cluster, identity: Identity) -> None:
        others = [member for member in cluster.members if member.name != identity.public.name]
        self._holders = {ssl.PEM_cert_to_DER_cert(m.certificate): m.number for m in others}
        pinned = "".join(member.certificate for member in others)
        self._dialling = _context(ssl.PROTOCOL_TLS_CLIENT, identity, pinned)
        self._listening = _context(ssl.PROTOCOL_TLS_SERVER, identity, pinned)
        # A ticket would let a session resume without showing the certificate again.
        self._listening.num_tickets = 0

    def session(self, *, dialled: bool) -> "TlsSession":
        return TlsSession(self._dialling if dialled else self._listening, server_side=not dialled)

    def holder(self, certificate: bytes | None) -> MemberId:
        """The member whose pinned certificate this is, in DER."""
        number = self._holders.get(certificate or b"")
        if number is None:
            raise AuthenticationError("shows a certificate that the cluster file does not pin")
        return number


class TlsSession:
    """One session: ciphertext in and out, plaintext in and out, no socket."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.established = False

    def feed(self, ciphertext: memoryview) -> None:
        self._incoming.write(ciphertext)

    def handshake(self) -> None:
        """Go as far as the bytes so far allow; `established` says whether that was the end."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(
                f"shows a certificate that the cluster file does not pin ({error.verify_message})"
            ) from None
        except ssl.SSLError as error:
            raise _failure(error, "fails the TLS handshake") from None
        self.established = True

    def certificate(self) -> bytes | None:
        """The peer's certificate in DER."""
        return self._tls.getpeercert(binary_form=True)

    def read_into(self, space: memoryview) -> int:
        """Decrypt into `space`; 0 when all that was fed is used up."""
        if not self._incoming.pending and not self._tls.pending():
            return 0
        try:
            # With a buffer, `read` answers how many bytes it wrote there.
            return int(self._tls.read(len(space), space))
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return 0
        except ssl.SSLError as error:
            raise _failure(error, "breaks its TLS session") from None

    def write(self, plaintext: bytes) -> None:
        self._tls.write(plaintext)

    def drain(self) -> bytes:
        """Ciphertext that is to be sent."""
        return self._outgoing.read()


class RefusedByPeerError(Exception):
    """The peer ended the session with an alert: it refuses us, and offends nobody."""


def _failure(error: ssl.SSLError, what: str) -> Exception:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return RefusedByPeerError(f"the peer refused our TLS session ({reason})")
    return RemoteProtocolError(f"{what} ({reason})")


def _context(protocol: int, identity: Identity, pinned: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if pinned:
        context.load_verify_locations(cadata=pinned)
    pem = identity.private_pem()
    with _as_file(pem) as certificate, _as_file(pem) as key:
        context.load_cert_chain(certificate, key)
    return context


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path that reads as this text once: `ssl` takes keys from paths only.

    A pipe has one, and so the key touches no disk. A private key file is far smaller than what
    a pipe holds, so that writing it all before anyone reads does not block.
    """
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "w") as pipe:
            pipe.write(text)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
