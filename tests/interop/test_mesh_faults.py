"""Faults between routers that are processes, as clients of other makes see them.

After each fault routes converge. Every delivery has a true outcome, no accepted message is lost, none arrives twice,
and no table keeps anything. Other tests measure the speed; here each time limit is that of a busy machine.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import pytest

from benchmarks.meshes import await_that, mesh

pytestmark = pytest.mark.interop

PACE = 0.005  # seconds from one message to the next
ENDLESS = 30_000  # messages: more than are sent in the time of a test
LASTS = 120.0  # seconds that a client of these tests may take
SOON = 10.0  # seconds for steps that take a tenth of a second on an idle machine
HOLD = 1.0
TABLE = f"hello = 0.25\nhold = {HOLD}\nlane_idle = 0.5\n"
families = pytest.mark.parametrize("family", ["proton", "rhea"])


@pytest.fixture
def routers(authority):
    """Start a mesh whose routers trust each other by certificates. Those not killed must end in good order."""

    def settings(router):
        files = f'certificate = "{router}.pem"\nkey = "{router}.key"\ntrust = "mesh-ca.pem"\n'
        return "[mesh]\n" + files.replace(' = "', f' = "{authority}/') + TABLE

    with mesh(settings) as made:
        yield made
        status = made.end()
        log = "\n".join(f"{each.id}: {line}" for each in made.routers.values() for line in each.log)
        print(log)
    assert set(status.values()) <= {0, -9}
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if " ERROR " in line]


def by(strait):
    """Return the URL of a listener of the mesh behind a faulty path."""
    return f"amqps://127.0.0.1:{strait.port}"


class Traffic:
    """Numbered messages from one router to another until it is concluded, and the account of them."""

    def __init__(self, client, family, near, far, address="q", pace=PACE):
        common = ["--address", address, "--timeout", str(LASTS)]
        self.receiver = client(f"{family}_receive", far.url, *common, "--count", "0", "--credit", "100")
        self.receiver.expect("attached")
        messages = [{"sections": [[0x77, ["string", f"{address} {number}"]]]} for number in range(ENDLESS)]
        self.sender = client(f"{family}_send", near.url, *common, "--pace", str(pace), messages=messages)

    def flow(self, count=100):
        """Wait until so many more have arrived."""
        for _ in range(count):
            self.receiver.expect("message")

    def conclude(self):
        """End it, wait for every outcome, and compare with the messages that arrived. Returns: the counted outcomes."""
        self.flow(5)
        self.sender.kill(signal.SIGTERM)
        self.sender.finish()
        self.receiver.stop()
        sent = {event["sha256"]: event["index"] for event in self.sender.of("sent")}
        came = Counter(sent[event["sha256"]] for event in self.receiver.of("message"))
        outcomes = {event["index"]: event["outcome"] for event in self.sender.of("outcome") if event["settled"]}
        assert sorted(outcomes) == list(range(len(sent))), "each has an outcome"
        assert max(came.values()) == 1, "none comes twice"
        for index, outcome in outcomes.items():
            assert outcome in ("accepted", "released", "modified")
            if outcome != "modified":
                assert came[index] == (outcome == "accepted"), f"{index} was {outcome}, and came {came[index]} times"
        told = Counter(outcomes.values())
        print(", ".join(f"{name} {count}" for name, count in sorted(told.items())))
        return told


def emptied(routers, *ids):
    """Wait until none of these routers has a client's link, a delivery or a lane."""
    for each in [routers[name] for name in ids or routers.routers]:

        def is_empty(router=each):
            told = router.entities()
            own = {each["number"] for each in told["connection"] if each["container_id"] not in routers.routers}
            links = [link for link in told["link"] if link["connection"] not in own | {0}]
            whole = told["router"][0]
            # The query itself is a client: a connection, its links, and a delivery that is being answered.
            return len(own) <= 1 and not links and not told["lane"] and whole["relays"] <= 1 and not whole["buffered"]

        await_that(is_empty, f"something is left in {each.id}", 2 * SOON)


def up(router, *neighbours):
    """Return whether these routers are its neighbours, and are up."""
    return {each["router"] for each in router.entities()["neighbour"] if each["up"]} == set(neighbours)


def triangle(routers):
    routers.triangle()
    routers.start()
    routers.settled()


@families
def test_a_router_on_the_path_that_is_killed_is_gone_round_and_used_again_when_it_is_back(family, routers, client):
    triangle(routers)
    traffic = Traffic(client, family, routers["A"], routers["C"])
    traffic.flow()
    assert routers["B"].relayed() > 0
    routers["B"].kill()
    began = time.monotonic()
    traffic.flow()
    print(f"100 more had come {time.monotonic() - began:.3f} s after the kill")
    routers["B"].start()
    routers.settled()
    await_that(lambda: routers["B"].relayed() > 0, "nothing goes by B again", SOON)
    traffic.conclude()
    emptied(routers)


@families
def test_the_router_of_a_receiver_that_is_killed_takes_up_its_address_when_it_is_back(family, routers, client):
    triangle(routers)
    traffic = Traffic(client, family, routers["A"], routers["C"], pace=0.02)
    traffic.flow(20)
    routers["C"].kill()
    routers["C"].start()
    routers["C"].wait()
    heir = client(f"{family}_receive", routers["C"].url, "--address", "q", "--timeout", str(LASTS), "--count", "0")
    for _ in range(20):
        heir.expect("message")
    traffic.sender.kill(signal.SIGTERM)
    traffic.sender.finish()
    heir.stop()
    traffic.receiver.stop()
    sent = {event["sha256"]: event["index"] for event in traffic.sender.of("sent")}
    first, second = ({sent[event["sha256"]] for event in each.of("message")} for each in (traffic.receiver, heir))
    outcomes = {event["index"]: event["outcome"] for event in traffic.sender.of("outcome")}
    assert sorted(outcomes) == list(range(len(sent)))
    assert not first & second
    for index, outcome in outcomes.items():
        assert outcome == "modified" or (index in first | second) == (outcome == "accepted")
    emptied(routers)


@families
def test_a_router_that_freezes_is_found_within_its_hold_time_and_is_back_when_it_thaws(family, routers, client):
    triangle(routers)
    traffic = Traffic(client, family, routers["A"], routers["C"])
    traffic.flow()
    routers["B"].freeze()
    began = time.monotonic()
    await_that(lambda: up(routers["A"], "C") and up(routers["C"], "A"), "a frozen router is not found", SOON)
    assert time.monotonic() - began < HOLD + SOON / 2
    traffic.flow()
    routers["B"].thaw()
    routers.settled()
    await_that(lambda: up(routers["A"], "B", "C") and up(routers["C"], "A", "B"), "it does not come back", SOON)
    traffic.conclude()
    emptied(routers)


def test_a_router_that_freezes_for_a_moment_costs_nothing(routers, client):
    triangle(routers)
    traffic = Traffic(client, "proton", routers["A"], routers["C"])
    for _ in range(5):
        traffic.flow(40)
        routers["B"].freeze()
        time.sleep(HOLD / 10)  # the fault itself: nothing is waited for
        routers["B"].thaw()
    assert set(traffic.conclude()) == {"accepted"}
    emptied(routers)


def crossing(routers, strait):
    """Start A, B and C, with routes from A by B to C and directly. The only path from A to B is a faulty one."""
    c = routers.add("C")
    b = routers.add("B", (c.mesh_url, 1))
    way = strait(b.mesh_url)
    routers.add("A", (by(way), 1), (c.mesh_url, 5))
    routers.start()
    routers.settled()
    return way


@families
def test_a_connection_that_is_cut_costs_what_was_on_it_and_comes_back(family, routers, client, strait):
    way = crossing(routers, strait)
    traffic = Traffic(client, family, routers["A"], routers["C"])
    traffic.flow()
    way.cut()
    traffic.flow()
    await_that(lambda: way.made == 2 and up(routers["A"], "B", "C"), "the connection is not back", SOON)
    traffic.flow()
    way.cut(lasting=True)
    traffic.flow()
    way.mend()
    await_that(lambda: up(routers["A"], "B", "C"), "the connection is not back", 2 * SOON)
    traffic.conclude()
    emptied(routers)


def test_a_connection_on_which_nothing_passes_any_more_is_found_within_the_hold_time(routers, client, strait):
    way = crossing(routers, strait)
    traffic = Traffic(client, "proton", routers["A"], routers["C"])
    traffic.flow()
    way.stall()
    await_that(lambda: up(routers["A"], "C") and up(routers["B"], "C"), "a silent connection is not found", SOON)
    traffic.flow()
    way.mend()
    await_that(lambda: up(routers["A"], "B", "C") and up(routers["B"], "A", "C"), "it does not come back", SOON)
    traffic.conclude()
    emptied(routers)


def test_a_way_that_takes_its_time_carries_all_the_same(routers, client, strait):
    way = crossing(routers, strait)
    way.delay(0.05)
    traffic = Traffic(client, "proton", routers["A"], routers["C"])
    traffic.flow()
    assert set(traffic.conclude()) == {"accepted"}
    assert routers["B"].entities()["mesh"][0]["no_hops"] == 0
    emptied(routers)


def test_a_connection_that_is_lost_again_and_again_is_left_alone_until_it_stays(routers, client, strait):
    way = crossing(routers, strait)
    traffic = Traffic(client, "proton", routers["A"], routers["C"])
    for made in range(1, 5):
        await_that(lambda made=made: way.made == made and up(routers["A"], "B", "C"), "it is not back", SOON)
        way.cut()
    await_that(lambda: any("neighbour damped" in line for line in routers["A"].log), "it is not damped", SOON)
    await_that(lambda: way.made == 5 and up(routers["A"], "B", "C"), "the connection is not back", SOON)
    (to_b,) = [each for each in routers["A"].entities()["neighbour"] if each["router"] == "B"]
    assert not to_b["advertised"]
    traffic.conclude()
    await_that(
        lambda: all(each["advertised"] for each in routers["A"].entities()["neighbour"]), "it stays damped", 40.0
    )
    emptied(routers)


def test_each_half_of_a_mesh_goes_on_by_itself_and_both_find_each_other_again(routers, client, strait):
    a = routers.add("A")
    b = routers.add("B", (a.mesh_url, 1))
    upper, lower = strait(b.mesh_url), strait(a.mesh_url)
    c = routers.add("C", (by(upper), 1))
    routers.add("D", (c.mesh_url, 1), (by(lower), 1))
    routers.start()
    routers.settled()
    here = Traffic(client, "proton", routers["A"], routers["B"], "here")
    there = Traffic(client, "proton", routers["C"], routers["D"], "there")
    across = Traffic(client, "proton", routers["A"], routers["C"], "across")
    for each in (here, there, across):
        each.flow(20)
    for each in (upper, lower):
        each.cut(lasting=True)
    await_that(lambda: routers["A"].reachable() == {"B"}, "A does not notice", SOON)
    await_that(lambda: routers["C"].reachable() == {"D"}, "C does not notice", SOON)
    for each in (here, there):
        each.flow(20)
    for each in (upper, lower):
        each.mend()
    routers.settled()
    for each in (across, here, there):
        each.conclude()
    emptied(routers)


def test_three_routers_that_are_started_together_carry_an_address_end_to_end(routers, client):
    routers.line("ABC")
    routers.start()
    receiver = client("proton_receive", routers["C"].url, "--address", "first")
    sender = client(
        "proton_send", routers["A"].url, "--address", "first", messages=[{"sections": [[0x77, ["string", "x"]]]}]
    )
    sender.finish()
    receiver.finish()
    assert [event["outcome"] for event in sender.of("outcome")] == ["accepted"]
    emptied(routers)


def test_an_address_is_reached_over_ten_routers_as_soon_as_it_has_a_consumer(client):
    with mesh() as line:
        line.line("ABCDEFGHIJ")
        line.start()
        line.settled("A", "J")
        sender = client(
            "proton_send", line["A"].url, "--address", "far", messages=[{"sections": [[0x77, ["string", "x"]]]}]
        )
        sender.expect("attached")
        receiver = client("proton_receive", line["J"].url, "--address", "far")
        receiver.expect("attached")
        began = time.monotonic()
        receiver.finish()
        assert time.monotonic() - began < SOON
        sender.finish()
        assert all(line[each].entities()["mesh"][0]["no_hops"] == 0 for each in "ABCDEFGHIJ")


@pytest.mark.slow
@families
def test_a_mesh_in_which_one_thing_after_the_other_goes_wrong_loses_nothing(family, routers, client, strait):
    way = crossing(routers, strait)
    chance = random.Random(5)
    traffic = Traffic(client, family, routers["A"], routers["C"], pace=0.01)
    traffic.flow()

    def killed():
        routers["B"].kill()
        traffic.flow(20)
        routers["B"].start()
        routers["B"].wait()

    def frozen():
        routers["B"].freeze()
        time.sleep(chance.uniform(0, 2 * HOLD))  # the fault itself: nothing is waited for
        routers["B"].thaw()

    def stalled():
        way.stall()
        time.sleep(chance.uniform(0, 2 * HOLD))  # the fault itself: nothing is waited for
        way.mend()

    for _ in range(12):
        chance.choice([killed, frozen, stalled, way.cut])()
        traffic.flow(chance.randrange(20, 200))
    routers.settled()
    traffic.conclude()
    emptied(routers)
