"""Token buckets that limit no link any more, and are kept: some of each tenant, until they are idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.largest import Counts

if TYPE_CHECKING:
    from amqpmesh.router.kernel import TokenBucket


class Room:
    """The buckets of one tenant that limit no link, the one that has been looked at last at the end."""

    __slots__ = ("buckets", "kind")

    def __init__(self, kind: Unused) -> None:
        self.kind = kind
        self.buckets: dict[TokenBucket, None] = {}


class Unused:
    """Buckets of one kind that limit no link: some of all tenants together. Of more, one is forgotten of the tenant
    that has the most: so no tenant makes the router forget what others have used up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._counts: Counts[Room] = Counts()
        self._rooms: dict[str, Room] = {}
        #: Those with buckets, the one that has been looked at last at the end.
        self._filled: dict[Room, None] = {}

    def of(self, tenant: str) -> Room:
        """Return the room of a tenant."""
        room = self._rooms.get(tenant)
        if room is None:
            room = self._rooms[tenant] = Room(self)
        return room

    def add(self, room: Room, bucket: TokenBucket) -> None:
        """Add a bucket, if it is not there."""
        if bucket not in room.buckets:
            room.buckets[bucket] = None
            self._filled[room] = None
            self._counts.add(room)
            self._size += 1

    def discard(self, room: Room, bucket: TokenBucket) -> None:
        """Remove a bucket, if it is there."""
        if bucket in room.buckets:
            del room.buckets[bucket]
            self._counts.remove(room)
            self._size -= 1
            if not room.buckets:
                del self._filled[room]

    def another(self) -> Room | None:
        """Return the room with buckets that was returned longest ago; None: there are no buckets."""
        room = next(iter(self._filled), None)
        if room is not None:
            self._filled[room] = self._filled.pop(room)
        return room

    def surplus(self) -> TokenBucket | None:
        """Return the bucket to forget; None: there are not too many."""
        return None if self._size <= self._most else next(iter(self._counts.largest().buckets))
