"""The policy of a router, with the signature that it may have to have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.policy_file import PolicyText, octets_of, policy_of

if TYPE_CHECKING:
    from amqpmesh.router.config.mesh import MeshConfig
    from amqpmesh.router.config.policy_file import PolicyConfig


def read_policy(config: PolicyConfig, mesh: MeshConfig | None) -> PolicyText:
    """Read the policy of a router.

    A policy that is pushed may come later than the router starts: a file that is not there yet permits nothing.
    Raises: ConfigError: the file is not valid; or it is not signed, and has to be.
    """
    if config.push and not config.file.exists():
        return policy_of(b"", config.file)
    return trusted_policy(octets_of(config.file), config, mesh)


def trusted_policy(data: bytes, config: PolicyConfig, mesh: MeshConfig | None) -> PolicyText:
    """Return the policy in the octets of a file, or in pushed ones. Raises: ConfigError: as `read_policy`."""
    if config.signed:
        _verify(data, config, mesh)
    return policy_of(data, config.file)


def _verify(data: bytes, config: PolicyConfig, mesh: MeshConfig | None) -> None:
    # Imported here: most routers have no signed policy, and without a mesh they need no cryptography.
    from amqpmesh.topology.certificates import CertificateError
    from amqpmesh.topology.signed_policies import authorities_in, fault

    if mesh is None or mesh.trust is None:
        raise ConfigError(str(config.file), "policy.signed", "needs the authority of a mesh: [mesh] trust")
    try:
        authorities = authorities_in(mesh.trust.read_bytes())
    except OSError as error:
        raise ConfigError(str(mesh.trust), "mesh.trust", error.strerror or str(error)) from None
    except CertificateError as error:
        raise ConfigError(str(mesh.trust), "mesh.trust", str(error)) from None
    reason = fault(data, authorities)
    if reason is not None:
        raise ConfigError(str(config.file), "file", reason)
