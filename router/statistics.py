"""What a running router tells of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts, now and over the router's life."""

    connections: int
    """Connections that are not gone yet."""
    links: int
    addresses: int
    """Addresses that somebody uses, dynamic nodes among them."""
    relays: int
    """Deliveries that are on their way, wait, or are unsettled on either side."""
    buffered: int
    """Octets of messages that wait here."""
    undelivered: int
    """Deliveries that went back or were dropped because nobody was there to take them."""
    expired: int
    """Deliveries whose ttl ended here."""
    stolen: int
    """Links that were attached again elsewhere."""
    irregular: int
    """Messages whose sections were out of order, doubled or malformed; relayed untouched from there."""

    @property
    def is_empty(self) -> bool:
        """Nothing is left: no connection, link, address or delivery, and no byte of any."""
        return not (self.connections or self.links or self.addresses or self.relays or self.buffered)
