"""A program that uses every public name, checked strictly against the installed package, and run.

Its first half is an example of the library: a service within the process, and a client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import trio

from amqpmesh import (
    Accepted,
    AddressConfig,
    AddressStatistics,
    AdvertStatistics,
    AmqpMeshError,
    AmqpSequence,
    AmqpValue,
    Applied,
    Array,
    Backoff,
    Byte,
    Char,
    CommandError,
    ConfigError,
    Connection,
    ConnectionClosedError,
    ConnectionDirection,
    ConnectionRedirectError,
    ConnectionStatistics,
    ConnectorConfig,
    ConnectorState,
    ConnectorStatistics,
    ConnectorTlsConfig,
    ContainerLinkState,
    ContainerLinkStatistics,
    Data,
    Decimal32,
    Decimal64,
    Decimal128,
    Delivery,
    DeliveryAbortedError,
    DeliveryAnnotationsRule,
    Described,
    Difference,
    Direction,
    DisagreementStatistics,
    Distribution,
    Duplicates,
    Effect,
    ElsewhereConfig,
    Error,
    Float,
    HttpConfig,
    InDoubtError,
    Int,
    LaneStatistics,
    Limits,
    LimitStatistics,
    LinkConfig,
    LinkDetachedError,
    LinkRedirectError,
    LinkStatistics,
    LinkStolenError,
    ListenerConfig,
    ListenerStatistics,
    LogConfig,
    Login,
    Long,
    MeshConfig,
    MeshStatistics,
    Message,
    Modified,
    ModifiedError,
    NeighbourStatistics,
    NodeStatistics,
    Outcome,
    OutcomeError,
    Outcomes,
    Overflow,
    PasswordConfig,
    PlaceConfig,
    PolicyConfig,
    PolicyStatistics,
    Primitive,
    ProtocolError,
    RateStatistics,
    Reason,
    Receiver,
    ReceiverSettleMode,
    RedirectConfig,
    Rejected,
    RejectedError,
    Released,
    ReleasedError,
    Requester,
    Resumption,
    ResumptionConfig,
    Router,
    RouterConfig,
    RouterStatistics,
    RouteStatistics,
    SaslError,
    Sender,
    SenderSettleMode,
    Sent,
    SessionEndedError,
    Short,
    Source,
    Statistics,
    Symbol,
    TableStatistics,
    Target,
    TerminusStatistics,
    Timestamp,
    TlsConfig,
    TokenIssuerConfig,
    TokenKeyConfig,
    TokensConfig,
    UByte,
    UInt,
    ULong,
    UserChange,
    UserIdentity,
    UserStatistics,
    UShort,
    Watch,
    WebSocketConfig,
    __version__,
    connect,
)

# ---------------------------------------------------------------------------------------------------------- the example


def price(body: object) -> bytes:
    """Return the price of an order."""
    return b"0.93 " + body if isinstance(body, bytes) else b"?"


def spam(message: Message) -> bool:
    """Return whether an order is spam."""
    return bool(message.body == b"spam")


def work(message: Message) -> None:
    """Do the work of a job."""
    assert isinstance(message.body, bytes)


async def quotes(router: Router) -> None:
    """Run a service on an in-process link."""
    async with router.receiver("quotes", credit=20) as requests:
        async for delivery in requests:
            async with delivery as message:
                await delivery.reply(Message(price(message.body)))


async def collect(connection: Connection, ready: trio.Event, number: int) -> None:
    """Collect so many orders."""
    async with connection.receiver("orders", credit=100, buffer=2**20) as incoming:
        ready.set()
        async for delivery in incoming:
            if spam(delivery.message):
                delivery.reject("amqp:not-allowed", "spam")
            else:
                async with delivery as message:
                    work(message)
            number -= 1
            if not number:
                return


async def example() -> None:
    """Run a router, its service, and a client."""
    async with Router(id="gateway", listeners=["amqp://127.0.0.1:0"]) as router, trio.open_nursery() as nursery:
        nursery.start_soon(quotes, router)
        async with connect(router.listeners[0].url, reconnect=True) as connection:
            async with connection.requester("quotes") as quote:
                with trio.fail_after(60):
                    reply = await quote.request(b"EUR/CHF")
                assert reply.body == b"0.93 EUR/CHF"
            ready = trio.Event()
            nursery.start_soon(collect, connection, ready, 12)
            await ready.wait()
            async with connection.sender("orders") as orders:
                await orders.send(Message(b"...", durable=True, ttl=30.0))
                sent = [await orders.transfer(b"x") for _ in range(10)]
                outcomes = [await s.outcome() for s in sent]
                assert outcomes == [Accepted()] * 10
                try:
                    await orders.send(b"spam")
                except RejectedError as error:
                    print(told(error))
            async with connection.sender(None) as anonymous:
                try:
                    await anonymous.send(Message(b"x", to="nowhere"))
                except ReleasedError as error:
                    print(told(error))
        nursery.cancel_scope.cancel()


# --------------------------------------------------------------------------------------------------- every other name


def explain(outcome: Outcome) -> str:
    """Return the outcome of a message, in words."""
    match outcome:
        case Accepted():
            return "accepted"
        case Rejected(error=Error() as error):
            return f"rejected: {error.condition} {error.description} {error.info}"
        case Rejected():
            return "rejected"
        case Released():
            return "released"
        case Modified():
            return f"modified: {outcome.delivery_failed} {outcome.undeliverable_here} {outcome.message_annotations}"


def told(error: AmqpMeshError) -> str:
    """Return the error, in words; the most specific class is checked first."""
    match error:
        case RejectedError() | ReleasedError() | ModifiedError():
            return f"{explain(error.outcome)} {error.error}"
        case OutcomeError():
            return explain(error.outcome)
        case LinkRedirectError():
            return f"it is at {error.network_host}:{error.port}, {error.hostname}, {error.address}"
        case ConnectionRedirectError():
            return f"the connection is at {error.network_host}:{error.port}, {error.hostname}"
        case LinkStolenError():
            return "somebody else has the link"
        case InDoubtError() | LinkDetachedError() | SessionEndedError() | SaslError() | ConnectionClosedError():
            return str(error) if error.error is None else f"{error.error.condition}: {error.error.description}"
        case ConfigError():
            return f"{error.file}: {error.key}: {error.reason}"
        case ProtocolError():
            return f"{error.condition}: {error.description}"
        case CommandError() | DeliveryAbortedError():
            return str(error)
    return "something else"


def every_type() -> Message:
    """Return a message with a value of every AMQP type that Python lacks."""
    numbers = [UByte(1), UShort(2), UInt(3), ULong(4), Byte(-1), Short(-2), Int(-3), Long(-4), Float(1.5), 2.5]
    decimals = [kind.from_decimal(Decimal("1.5")) for kind in (Decimal32, Decimal64, Decimal128)]
    others = [Char("a"), Timestamp(0), Symbol("s"), Described(Symbol("d"), 1), Array(Primitive.UINT, [UInt(1)])]
    return Message([*numbers, *decimals, *others], absolute_expiry_time=Timestamp(2**40))


def bodies() -> Iterator[Message]:
    """Yield messages with several body sections, or with a section class as the body."""
    yield Message((Data(value=b"a"), Data(value=b"b")))
    yield Message(AmqpSequence(value=[1, "two"]))
    yield Message(AmqpValue(value=b"octets"))
    yield every_type()


async def known(login: Login) -> UserIdentity | None:
    """Return who has logged in; None: nobody."""
    right = login.password == "secret" and login.host and login.listener
    return UserIdentity(login.user, groups=("readers",), tenant=None) if right else None


def configuration(folder: Path) -> RouterConfig:
    """Return a configuration with every table."""
    tls = TlsConfig(certificate=folder / "router.pem", key=folder / "router.key")
    public = ListenerConfig(
        url="amqps://0.0.0.0:0", sasl=("SCRAM-SHA-256",), users=folder / "users.toml", tls=tls, max_frame_size=2**14
    )
    limits: Limits = public
    assert limits.max_frame_size == 2**14
    news = AddressConfig(
        pattern="news.#",
        distribution=Distribution.MULTICAST,
        overflow=Overflow.DROP,
        delivery_annotations=DeliveryAnnotationsRule.DROP,
    )
    jobs = AddressConfig(
        pattern="jobs.#", duplicates=Duplicates.MESSAGE_ID, duplicate_window=5_000, duplicate_time=600.0
    )
    assert jobs.drops_duplicates
    payments = AddressConfig(pattern="payments.#", resumption=Resumption.REQUIRED)
    assert payments.requires_resumption
    kept = ResumptionConfig(timeout=30.0, links=1_000, links_per_user=10, unsettled=10_000, keep=2**20, anonymous=True)
    mesh = MeshConfig(certificate=folder / "A.pem", key=folder / "A.key", trust=folder / "mesh-ca.pem")
    neighbour = ConnectorConfig(url=("amqps://b1.example", "amqps://b2.example"), cost=2)
    broker = ConnectorConfig(
        url="amqps://broker.example",
        name="broker",
        role="container",
        tls=ConnectorTlsConfig(trust=folder / "broker-ca.pem"),
        user="alice",
        password=PasswordConfig(env="BROKER_PASSWORD"),
    )
    asking = ListenerConfig(url="amqps://0.0.0.0:0", sasl=("PLAIN",), users=known, tls=tls)
    browsed = ListenerConfig(url="ws://127.0.0.1:0/amqp", websocket=WebSocketConfig(head=8192, request_time=5.0))
    watched = ListenerConfig(url="http://127.0.0.1:0", role="http", http=HttpConfig(connections=10))
    moved = ListenerConfig(url="amqp://127.0.0.1:0", redirect=PlaceConfig(hostname="b.example"))
    elsewhere = AddressConfig(pattern="elsewhere/#", redirect=RedirectConfig(hostname="b.example", address="there"))
    followed = AddressConfig(pattern="far", redirect=RedirectConfig(hostname="b.example", follow="router"))
    orders = LinkConfig(connector="broker", source="orders", address="incoming/orders", capabilities=("queue",))
    audit = LinkConfig(connector="broker", target="audit", address="audit", watch=Watch.ALWAYS)
    return RouterConfig(
        id="A",
        mesh=mesh,
        policy=PolicyConfig(file=folder / "policy.toml"),
        tokens=TokensConfig(size=4096),
        token_issuers=(
            TokenIssuerConfig(issuer="https://login.example/", audience=("mesh",), jwks=folder / "keys.json"),
        ),
        token_keys=(
            TokenKeyConfig(name="senders", keys=(PasswordConfig(env="KEY"),), audience=("amqps://mesh.example",)),
        ),
        listeners=(public, asking, browsed, watched, moved),
        connectors=(neighbour, broker),
        container_links=(orders, audit),
        addresses=(news, elsewhere, followed, payments),
        elsewhere=ElsewhereConfig(domains=("*.example",), places=8),
        log=LogConfig(level="debug", format="json"),
        resumption=kept,
    )


async def changed(router: Router, config: RouterConfig) -> AsyncIterator[str]:
    """Yield a line for each change of a configuration."""
    applied: Applied = await router.apply(config, dry_run=True)
    if await router.move_clients(pace=0.1, timeout=10.0):
        return
    difference: Difference
    for difference in applied.differences:
        since: Effect = difference.effect
        yield f"{difference.key} {difference.before} {difference.after} {since is Effect.RESTART}"
    change: UserChange
    for change in applied.users:
        yield f"{change.event} {change.listener} {change.user} {change.others}"


def shown(statistics: Statistics) -> Iterator[str]:
    """Yield a line for each entity."""
    whole: RouterStatistics = statistics.router
    yield f"{whole.id} {whole.relays} {counted(whole)}"
    listener: ListenerStatistics
    for listener in statistics.listeners:
        yield f"{listener.url} {listener.connections} {listener.refused}"
    connector: ConnectorStatistics
    for connector in statistics.connectors:
        waits = "" if connector.state is ConnectorState.CONNECTED else f"waits: {connector.reason}"
        yield f"{connector.name} {connector.url} {waits}"
    bound: ContainerLinkStatistics
    for bound in statistics.container_links:
        waits = "" if bound.state is ContainerLinkState.ATTACHED else f"waits: {bound.reason}"
        yield f"{bound.node} {bound.address} {waits}"
    table: TableStatistics
    for table in (*statistics.address_patterns, *statistics.tables):
        yield f"{table.name} {table.runtime} {dict(table.settings)}"
    user: UserStatistics
    for user in statistics.users:
        yield f"{user.name} {user.listener} {user.listeners} {user.groups} {user.disabled}"
    policy: PolicyStatistics
    for policy in statistics.policies:
        yield f"{policy.file} {policy.version} {policy.refused_reason or ''}"
    connection: ConnectionStatistics
    for connection in statistics.connections:
        ours = connection.direction is ConnectionDirection.OUT
        yield f"{connection.container_id} {connection.user or 'anonymous'} {connection.octets_in} {ours}"
    link: LinkStatistics
    for link in statistics.links:
        arrow = "<-" if link.direction is Direction.INCOMING else "->"
        waits = "" if link.reason is None else f"waits: {link.reason}"
        yield f"{arrow} {link.address} {link.credit} {link.unsettled} {counted(link)} {waits}"
    away: TerminusStatistics
    for away in statistics.termini:
        yield f"{away.container_id} {away.address} {away.unsettled} {away.octets} {away.expires_at}"
    limit: LimitStatistics
    for limit in statistics.limits:
        yield f"{limit.tenant} {limit.user or limit.host} {limit.limit}: {limit.used} of {limit.allowed}"
    rate: RateStatistics
    for rate in statistics.rates:
        yield f"{rate.tenant} {rate.address} {rate.limit}: {rate.used:g} of {rate.allowed:g}, {rate.left:g}"
    address: AddressStatistics
    for address in statistics.addresses:
        yield f"{address.name} {address.waiting} {'alone' if address.reason is Reason.NO_RECEIVER else ''}"
    node: NodeStatistics
    mesh: MeshStatistics | None = statistics.mesh
    if mesh is not None:
        yield f"{mesh.id} {mesh.routers} {mesh.dropped_untrusted}"
    neighbour: NeighbourStatistics
    for neighbour in statistics.neighbours:
        yield f"{neighbour.router} {neighbour.cost} {neighbour.reason or 'up'}"
    route: RouteStatistics
    for route in statistics.routes:
        yield f"{route.router} {route.distance} {', '.join(route.next_hops)}"
    lane: LaneStatistics
    for lane in statistics.lanes:
        yield f"{lane.kind} {lane.far} {lane.credit} {counted(lane)}"
    advert: AdvertStatistics
    for advert in statistics.adverts:
        yield f"{advert.name} {advert.router} {advert.reachable}"
    disagreement: DisagreementStatistics
    for disagreement in statistics.disagreements:
        yield f"{disagreement.address} {disagreement.ours} {disagreement.router} {disagreement.theirs}"
    for node in statistics.nodes:
        yield f"{node.name} {node.lifetime}"


def counted(outcomes: Outcomes) -> str:
    """Return the number of deliveries of each outcome."""
    return f"{outcomes.accepted} {outcomes.rejected} {outcomes.released} {outcomes.modified} {outcomes.presettled}"


async def send_one(sender: Sender, message: Message) -> Sent:
    """Send without waiting for the outcome."""
    sent: Sent = await sender.transfer(message)
    return sent


async def receive_one(receiver: Receiver) -> Delivery:
    """Receive one delivery with credit given by the program."""
    receiver.flow(1)
    delivery: Delivery = await receiver.receive()
    with suppress(trio.WouldBlock):
        delivery = receiver.receive_nowait()
    await receiver.drain()
    return delivery


async def parts() -> AsyncIterator[bytes]:
    """Yield the parts of a large body."""
    for _ in range(2):
        yield bytes(2**16)


async def ask(requester: Requester, question: str) -> Message | None:
    """Return the reply, or None if none comes in time."""
    with trio.move_on_after(0.05):
        return await requester.request(Message(question, subject="?"))
    return None


async def others() -> None:
    """Use the names that the example does not use."""
    async with Router(
        RouterConfig(id="B", addresses=(AddressConfig(pattern="news", distribution=Distribution.MULTICAST),))
    ) as router:
        async with (
            router.receiver(
                "q", credit=0, rcv_settle_mode=ReceiverSettleMode.SECOND, source=Source(address="q")
            ) as receiver,
            router.sender(
                "q",
                snd_settle_mode=SenderSettleMode.UNSETTLED,
                rcv_settle_mode=ReceiverSettleMode.SECOND,
                target=Target(address="q"),
            ) as sender,
        ):
            for message in bodies():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send_one, sender, message)
                    delivery = await receive_one(receiver)
                assert delivery.message == message
                delivery.modify(delivery_failed=True, message_annotations={"x-opt-tries": 1})
                await delivery.settled()
            for line in shown(router.statistics()):
                print(line)
        async with router.requester("q") as requester:
            assert await ask(requester, "anybody?") is None
        async with router.receiver("big", streaming=True) as receiver, router.sender("big") as sender:
            await sender.transfer(bytes(2**17))
            sent: Sent = await sender.transfer_parts(parts(), message=Message(subject="big"), size=2**17)
            for _ in range(2):
                streamed = await receiver.receive()
                assert sum([len(part) async for part in streamed]) == 2**17
                streamed.accept()
            assert await sent.outcome() == Accepted()
            await sender.send_parts(parts(), settled=True)
    try:
        async with connect("amqp://127.0.0.1:1", reconnect=False):
            pass
    except ConnectionClosedError as error:
        print(told(error))
    with trio.move_on_after(0.05):
        async with connect(["amqp://127.0.0.1:1"], reconnect=Backoff(first=0.01, longest=0.02)):
            pass


def main() -> None:
    """Run everything."""
    print(__version__)
    trio.run(example)
    trio.run(others)
    try:
        print(configuration(Path()))
    except AmqpMeshError as error:
        print(told(error))


if __name__ == "__main__":
    main()
