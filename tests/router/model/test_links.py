"""Links of clients, as their peers see them."""

from tests.support.worlds.network import Network


def test_each_delivery_has_a_tag_of_its_own_which_is_text() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=300)
    link = producer.sender("q")
    count = 0
    while count < 300:
        for _ in range(min(link.credit, 300 - count)):
            producer.send(link)
            count += 1
    tags = [arrival.delivery.tag.decode("ascii") for arrival in consumer.take(300)]
    assert len(set(tags)) == 300
    assert all(tag.isalnum() for tag in tags)
    network.leave()
