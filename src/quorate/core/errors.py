"""What can go wrong, in sentences.

`LocalProtocolError` says that our own caller asked for something impossible,
`RemoteProtocolError` that a peer sent something it must not. Every error knows whether
trying again can help, and a quorum error carries the cause per replica.
"""

from collections.abc import Mapping


class QuorateError(Exception):
    """Base of all errors that this package raises on purpose."""

    retriable = False


class ContractError(QuorateError):
    """A contract that cannot be kept, or that this cluster is too small for."""


class ConfigError(QuorateError):
    """A cluster file or an identity that does not say what it must."""


class DamagedError(QuorateError):
    """The disk does not have what was written there."""


class LocalProtocolError(QuorateError):
    """The caller used the API against its rules."""


class RemoteProtocolError(QuorateError):
    """A peer sent bytes or messages that no correct peer sends."""


class AuthenticationError(QuorateError):
    """A peer could not show that it is who it says it is."""


class RefusedError(QuorateError):
    """The replicas agree that this client may not do this."""


class QuorumError(QuorateError):
    """Too few replicas answered as the contract asks; `causes` says what each one did."""

    retriable = True

    def __init__(self, sentence: str, causes: Mapping[str, str]) -> None:
        detail = "; ".join(f"{replica}: {cause}" for replica, cause in causes.items())
        super().__init__(f"{sentence} ({detail})" if detail else sentence)
        self.causes = dict(causes)


class UnreachedError(QuorumError):
    """Nobody is there at the address of any replica; the sentence names them all at once."""

    def __init__(self, sentence: str, causes: Mapping[str, str]) -> None:
        super().__init__(sentence, {})
        self.causes = dict(causes)


class BusyError(QuorumError):
    """The replicas push back: a queue that this topic may not overflow is full."""


class ClosedError(QuorateError):
    """The client was closed while the call was waiting."""
