"""A cluster file is read back as it was written, and whatever is wrong with it is a sentence."""

import base64
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import assume, given
from hypothesis import strategies as st

from quorate.core.cluster import (
    CLIENT_NUMBER_MIN,
    Client,
    Cluster,
    Replica,
    parse_topics,
    render_topics,
)
from quorate.core.contract import Contract
from quorate.core.control import CONTROL_TOPIC
from quorate.core.errors import ConfigError, ContractError, QuorateError
from quorate.core.ids import MEMBER_ID_MAX, topic_id
from quorate.core.names import MAC_ALGORITHMS
from quorate.core.stores import KafkaStore

CONTRACTS: tuple[dict[str, Any], ...] = (
    {"protection": "none"},
    {"protection": "crash"},
    {"protection": "byzantine", "broadcast": "vote"},
    {"protection": "byzantine", "broadcast": "authenticated", "history_every": 10},
    {"protection": "byzantine", "broadcast": "reliable", "expires_after": "500ms"},
    {"protection": "byzantine", "broadcast": "chain", "history_every": 100},
    {"protection": "crash", "queue_events_max": 10, "discard": "oldest", "publishers_max": 3},
    {"protection": "byzantine", "order": "total", "validated": True, "retention": "7d"},
)

KAFKA_SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"security.protocol": "SASL_SSL", "sasl.password": "env:KAFKA_PASSWORD"},
    {"client.rack": 'quo"ted \n', "ssl.key.pem": "file:/a b/key.pem"},
)

names = st.builds(
    str.__add__,
    st.sampled_from("abz059"),
    st.text("abz059._-", max_size=12) | st.just("long" + "-" * 58),
)
hosts = st.sampled_from(["127.0.0.1", "::1", "fe80::1%eth0", "broker-1.example.org"])


def contract(**table: Any) -> Contract:
    return Contract.parse("any", table)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    f = draw(st.integers(0, 2))
    replica_count = draw(st.integers(3 * f + 1, 3 * f + 3))
    client_count = draw(st.integers(0, 4))
    total = replica_count + client_count
    called = draw(st.lists(names, min_size=total, max_size=total, unique=True))
    keys = [blake3(b"key", key=bytes([i] * 32)).digest() for i in range(2 * total)]
    numbers = draw(
        st.lists(
            st.integers(CLIENT_NUMBER_MIN, MEMBER_ID_MAX),
            min_size=client_count,
            max_size=client_count,
            unique=True,
        )
    )
    members = [pinned(*part) for part in zip(called, keys[:total], keys[total:], strict=True)]
    topics = draw(st.dictionaries(names, st.sampled_from(CONTRACTS), max_size=4))
    assume(len({topic_id(name) for name in topics}) == len(topics))
    over = draw(st.integers(3 * f + 1, replica_count))
    return Cluster(
        name=draw(names),
        f=f,
        link_security=draw(st.sampled_from(["tls", "mac"])),
        mac=draw(st.sampled_from(MAC_ALGORITHMS)),
        allow_misbehaviour=draw(st.booleans()),
        replicas=tuple(
            Replica(
                **members[number],
                number=number,
                party=draw(names),
                host=draw(hosts),
                port=1 + number,
                metrics_port=draw(st.none() | st.just(65535 - number)),
            )
            for number in range(replica_count)
        ),
        clients=tuple(
            Client(**member, number=number, party=draw(names), operator=draw(st.booleans()))
            for member, number in zip(members[replica_count:], numbers, strict=True)
        ),
        topics={name: Contract.parse(name, table) for name, table in topics.items()},
        placed_over=dict.fromkeys(topics, over),
        snapshot_every=draw(st.sampled_from([1, 8, 4096])),
        slots_kept=draw(st.sampled_from([1, 16, 65536])),
        stores={
            called[number]: KafkaStore(
                bootstrap=f"kafka-{number}:9092",
                topic_prefix=draw(st.sampled_from(["quorate.", "", "A_b-1"])),
                settings=draw(st.sampled_from(KAFKA_SETTINGS)),
            )
            for number in draw(st.sets(st.integers(0, replica_count - 1)))
        },
    )


def pinned(name: str, sign_key: bytes, mac_key: bytes) -> dict[str, Any]:
    body = base64.b64encode(sign_key).decode()
    certificate = f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"
    return {"name": name, "sign_key": sign_key, "mac_key": mac_key, "certificate": certificate}


def replica(number: int, **changes: Any) -> Replica:
    fields: dict[str, Any] = {
        **pinned(f"r{number}", bytes([1, number] * 16), bytes([2, number] * 16)),
        "number": number,
        "party": f"r{number}",
        "host": "127.0.0.1",
        "port": 7400 + number,
    }
    return Replica(**fields | changes)


def client(index: int, **changes: Any) -> Client:
    fields: dict[str, Any] = {
        **pinned(f"c{index}", bytes([3, index] * 16), bytes([4, index] * 16)),
        "number": CLIENT_NUMBER_MIN + index,
        "party": f"c{index}",
    }
    return Client(**fields | changes)


def cluster(**changes: Any) -> Cluster:
    fields: dict[str, Any] = {
        "name": "test",
        "f": 1,
        "replicas": tuple(replica(number) for number in range(4)),
        "clients": (client(0), client(1, operator=True)),
        "topics": {
            "metrics": contract(protection="crash"),
            "alerts": contract(protection="byzantine", broadcast="vote"),
        },
    }
    return Cluster(**fields | changes)


@given(clusters())
def test_a_cluster_is_read_back_as_it_was_written(written: Cluster) -> None:
    read = Cluster.parse(written.render())

    assert read == written
    assert read.render() == written.render()


@given(clusters(), st.data())
def test_a_damaged_file_is_read_or_refused_and_never_crashes(
    written: Cluster, data: st.DataObject
) -> None:
    text = written.render()
    position = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(0, 40))
    damaged = text[:position] + data.draw(st.text(max_size=5)) + text[position + length :]
    try:
        read = Cluster.parse(damaged)
    except QuorateError as error:
        assert str(error)
    else:
        assert Cluster.parse(read.render()) == read


def test_what_may_be_left_out_has_safe_defaults() -> None:
    text = cluster().render()
    for line in ('link_security = "tls"\n', 'mac = "aes-gmac"\n', "allow_misbehaviour = false\n"):
        assert line in text
        text = text.replace(line, "")
    for member in cluster().members:
        text = text.replace(f'party = "{member.name}"\n', "")

    assert Cluster.parse(text) == cluster()


def test_a_rendered_file_explains_itself() -> None:
    comments = [line for line in cluster().render().splitlines() if line.startswith("# ")]
    for word in ("secrets", "Topics", "Replicas", "Clients", "mac", "lie on purpose"):
        assert any(word in line for line in comments), word


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("f = 1", "f = -1", r"\[cluster\]: f is -1, but it must be a whole number from 0 to 999"),
        ("f = 1", "f = = 1", r"not valid TOML: .*line \d+"),
        ("f = 1\n", "f = 1\nsnapshot_every = 0\n", "snapshot_every is 0, .* from 1 to 2147483647"),
        ('name = "test"', 'name = "Test"', "name of the cluster is 'Test', but a name has 1 to 63"),
        ('"tls"\n', '"none"\n', 'link_security is \'none\', but it must be one of "tls", "mac"'),
        ('"aes-gmac"', '"md5"', 'mac is \'md5\', but it must be one of "aes-gmac", "blake3"'),
        ("allow_misbehaviour", "allow_misbehavior", "does not know the key 'allow_misbehavior'"),
        ("port = 7402", "port = 70000", "replica r2: port is 70000, .* from 1 to 65535"),
        ("port = 7402\n", "", "replica r2 needs the key 'port'"),
        ("port = 7402", "port = 7401", "r1 and r2 share an address 127.0.0.1:7401"),
        ("number = 2", "number = 3", "numbered 0 to 3 and stand in that order, .* 0, 1, 3, 3"),
        ("number = 1000", "number = 4", "client c0: number is 4, .* from 1000 to 4294967295"),
        ("number = 1000", "number = 1001", "c0 and c1 share the number 1001"),
        ('name = "r2"', 'name = "r1"', "r1 and r1 share the name r1"),
        ('name = "c0"', 'name = "r1"', "r1 and r1 share the name r1"),
        ('name = "r2"', 'name = "../r2"', r"\[\[replica\]\] number 3: name is '../r2'"),
        ('party = "r2"', 'party = ""', "party of r2 is '', but a name has"),
        ("operator = true", "operator = 1", "client c1: operator is 1, .* true or false"),
        ('sign_key = "AQIB', 'sign_key = "AQI', "replica r2: sign_key .* 32 bytes in base64"),
        ("[[client]]", "[[clients]]", "the cluster file does not know the key 'clients'"),
        ("[cluster]", "[klaster]", "the cluster file needs the key 'cluster'"),
    ],
)
def test_a_mistake_in_the_file_is_named(old: str, new: str, sentence: str) -> None:
    text = cluster().render()
    assert old in text
    with pytest.raises(ConfigError, match=sentence):
        Cluster.parse(text.replace(old, new))


def test_a_topic_that_is_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[topics.metrics\] must be a table"):
        parse_topics('[topics]\nmetrics = "crash"\n')


def test_who_writes_a_topic_without_its_prefix_is_told_how_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"has a key 'prices'; .* written \[topics.prices\]"):
        parse_topics('[prices]\nbroadcast = "chain"\n')


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sign_key": bytes(31)}, "keys of r1 must have 32 bytes"),
        ({"sign_key": bytes([1, 0] * 16)}, "r0 and r1 share the sign_key, but each must have"),
        ({"mac_key": bytes([2, 0] * 16)}, "r0 and r1 share the mac_key, but each must have"),
        ({"certificate": "hello"}, "certificate of r1 must be one PEM certificate"),
        ({"host": "bad host"}, "host of r1 is 'bad host'"),
        ({"port": 0}, "port of r1 is 0"),
        ({"metrics_port": 7400}, "r0 and r1 share an address"),
    ],
)
def test_a_replica_that_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    replicas = (replica(0), replica(1, **changes), replica(2), replica(3))
    with pytest.raises(ConfigError, match=sentence):
        cluster(replicas=replicas)


def test_two_machines_may_use_the_same_port() -> None:
    elsewhere = replica(1, host="10.0.0.2", port=7400)
    assert cluster(replicas=(replica(0), elsewhere, replica(2), replica(3)))


def test_a_private_key_never_enters_a_cluster_file() -> None:
    leaked = (
        replica(0).certificate + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    )
    with pytest.raises(ConfigError, match="comes with a private key"):
        cluster(replicas=(replica(0, certificate=leaked), replica(1), replica(2), replica(3)))


def test_a_cluster_without_a_correct_replica_is_refused() -> None:
    with pytest.raises(ConfigError, match="f = 4 faulty replicas of 4 leave no correct one"):
        cluster(f=4, topics={})
    with pytest.raises(ConfigError, match="has 1 to 1000 replicas, this one has 0"):
        cluster(replicas=(), f=0, topics={})


def test_a_topic_that_needs_more_replicas_is_refused() -> None:
    with pytest.raises(ContractError, match="orders"):
        cluster(f=2, topics={"orders": contract(protection="byzantine", broadcast="reliable")})


def test_members_are_found_by_number_and_by_name() -> None:
    made = cluster()

    assert made.member(2) is made.replicas[2]
    assert made.member(1001) is made.clients[1]
    assert made.named("c0") is made.clients[0]
    with pytest.raises(ConfigError, match="no member number 9; it has 0, 1, 2, 3, 1000, 1001"):
        made.member(9)
    with pytest.raises(ConfigError, match="no member named 'zoe'; it has r0, r1, r2, r3, c0, c1"):
        made.named("zoe")


def test_an_impossible_contract_in_the_file_is_refused() -> None:
    for old, new, sentence in (
        ("[topics.metrics]", "[topics.-]", "topic '-' is not a name"),
        ('protection = "crash"', 'protection = "cash"', "topic 'metrics': protection is 'cash'"),
    ):
        assert old in cluster().render()
        with pytest.raises(ContractError, match=sentence):
            Cluster.parse(cluster().render().replace(old, new))


def test_an_access_list_names_clients_of_the_cluster() -> None:
    fine = cluster(topics={"t": contract(protection="crash", publish=["c0"], subscribe=["*"])})
    assert Cluster.parse(fine.render()) == fine

    for key in ("publish", "subscribe"):
        with pytest.raises(ConfigError, match=f"'t': {key} names 'c2', .*its clients are c0, c1"):
            cluster(topics={"t": contract(protection="crash", **{key: ["c0", "c2"]})})


def test_two_topics_with_one_number_are_refused() -> None:
    # Found by search: the numbers have 32 bits, so there are such pairs.
    assert topic_id("t85271") == topic_id("t99710")
    topics = {name: contract(protection="crash") for name in ("t85271", "t99710")}
    with pytest.raises(ConfigError, match="t85271 and t99710 share the topic number"):
        cluster(topics=topics)


def test_a_topic_is_placed_on_as_many_replicas_as_its_contract_needs() -> None:
    made = cluster()

    assert len(made.placement("metrics")) == 2
    assert len(made.placement("alerts")) == 3
    with pytest.raises(ConfigError, match="no topic 'nothing'; it has metrics, alerts"):
        made.placement("nothing")


def test_placement_depends_on_the_topic_and_the_replicas_only() -> None:
    placed = cluster().placement("metrics")

    assert placed == tuple(sorted(placed))
    assert cluster(name="other", clients=()).placement("metrics") == placed


def test_placement_spreads_topics_over_all_replicas() -> None:
    topics = {f"t{i}": contract(protection="crash") for i in range(400)}
    made = cluster(topics=topics)
    load = Counter(number for name in topics for number in made.placement(name))

    # 800 places on 4 replicas: 200 each, and binomially distributed around it.
    assert all(140 < load[number] < 260 for number in range(4))


def test_a_replica_that_joins_takes_places_and_moves_no_other() -> None:
    topics = {f"t{i}": contract(protection="crash") for i in range(100)}
    before = cluster(topics=topics)
    after = replace(before, replicas=(*before.replicas, replica(4)))

    for name in topics:
        came = set(after.placement(name)) - set(before.placement(name))
        assert came <= {4}


def test_topics_survive_being_written_and_read_on_their_own() -> None:
    topics = {f"t{i}": Contract.parse(f"t{i}", table) for i, table in enumerate(CONTRACTS)}
    assert parse_topics(render_topics(topics)) == topics


def test_a_topic_stays_where_it_was_placed_when_a_replica_is_added() -> None:
    tables: tuple[dict[str, Any], ...] = (
        {"protection": "crash"},
        {"protection": "byzantine", "broadcast": "vote"},
        {"protection": "crash", "order": "total"},
    )
    topics = {f"t{i}": contract(**tables[i % 3]) for i in range(99)}
    before = cluster(topics=topics)
    after = replace(
        before, replicas=(*before.replicas, replica(4)), placed_over=dict.fromkeys(topics, 4)
    )

    assert [after.placement(name) for name in topics] == [before.placement(name) for name in topics]


def test_those_who_order_stay_the_same_when_a_replica_is_added() -> None:
    log = contract(protection="byzantine", order="total")
    before = cluster(topics={"log": log})
    after = replace(before, replicas=(*before.replicas, replica(4)), placed_over={"log": 4})

    assert before.placement("log") == before.placement(CONTROL_TOPIC) == (0, 1, 2, 3)
    assert after.placement("log") == after.placement(CONTROL_TOPIC) == (0, 1, 2, 3)
    assert Cluster.parse(after.render()) == after
    assert "orderers = 4" in after.render()
    assert "orderers" not in before.render()


@pytest.mark.parametrize(
    ("replicas", "f", "protection"), [(1, 0, "byzantine"), (3, 1, "crash"), (4, 1, "byzantine")]
)
def test_commands_have_the_best_protection_that_the_cluster_can_give(
    replicas: int, f: int, protection: str
) -> None:
    members = tuple(replica(number) for number in range(replicas))
    made = cluster(replicas=members, f=f, topics={})

    assert made.contract(CONTROL_TOPIC).protection == protection
    assert made.placement(CONTROL_TOPIC) == tuple(range(replicas))


def test_a_cluster_that_cannot_order_has_no_control_plane() -> None:
    made = cluster(replicas=(replica(0), replica(1)), f=1, topics={})

    assert made.control is None
    with pytest.raises(ConfigError, match="has no topic 'quorate.control'"):
        made.placement(CONTROL_TOPIC)


def test_names_of_the_cluster_s_own_topics_are_reserved() -> None:
    with pytest.raises(ConfigError, match="begin with 'quorate.' are the cluster's own"):
        cluster(topics={"quorate.mine": contract()})


def test_where_a_topic_was_placed_is_written_only_if_replicas_came_since() -> None:
    made = cluster(placed_over={"metrics": 4})
    grown = replace(made, replicas=(*made.replicas, replica(4)), placed_over={"metrics": 4})

    assert made == cluster()
    assert "placed_over =" not in made.render()
    assert grown.render().count("placed_over = 4") == 1
    assert Cluster.parse(grown.render()) == grown
    assert Cluster.parse(grown.render()).placed_over == {"metrics": 4}


@pytest.mark.parametrize(
    ("placed_over", "sentence"),
    [
        ({"nothing": 3}, "placed_over names 'nothing', which is no topic of this cluster"),
        ({"metrics": 5}, "'metrics': placed_over is 5, but this cluster has 4 replicas"),
        ({"metrics": 0}, "topic 'metrics' needs 2 replicas for f = 1"),
        ({"alerts": 2}, "topic 'alerts' needs 3 replicas for f = 1"),
    ],
)
def test_a_place_that_cannot_be_is_refused(placed_over: dict[str, int], sentence: str) -> None:
    with pytest.raises(QuorateError, match=sentence):
        cluster(placed_over=placed_over)


def test_a_topics_file_says_nothing_of_places() -> None:
    with pytest.raises(ContractError, match="a contract has no key 'placed_over'"):
        parse_topics('[topics.metrics]\nprotection = "crash"\nplaced_over = 4\n')


# Stores


def with_store(text: str) -> Cluster:
    """The cluster of a file that has this section too."""
    return Cluster.parse(cluster().render() + "\n" + text)


def test_a_store_has_its_settings_as_librdkafka_takes_them() -> None:
    made = with_store(
        """
        [store.r0]
        kind = "kafka"
        bootstrap = "one:9092,[::1]:9093"
        [store.r0.settings]
        "security.protocol" = "SSL"
        "enable.ssl.certificate.verification" = false
        "socket.timeout.ms" = 5000
        [store.r1]
        kind = "embedded"
        """
    )

    assert made.stores == {
        "r0": KafkaStore(
            bootstrap="one:9092,[::1]:9093",
            topic_prefix="quorate.",
            settings={
                "security.protocol": "SSL",
                "enable.ssl.certificate.verification": "false",
                "socket.timeout.ms": "5000",
            },
        )
    }
    assert Cluster.parse(made.render()) == made


def test_each_replica_has_its_own_store_whatever_commands_change() -> None:
    made = with_store('[store.r3]\nkind = "kafka"\nbootstrap = "one:9092"\n')

    assert made.shared().stores == {}
    assert made.shared().as_in(made).stores == made.stores
    fewer = replace(made, replicas=made.replicas[:3], f=0, topics={}, orderers=0, stores={})
    assert fewer.as_in(made).stores == {}


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ('[store.r9]\nkind = "kafka"\nbootstrap = "a:1"', "for no replica .*; it has r0, r1, r2"),
        ('[store.r0]\nkind = "redis"', 'kind is \'redis\', .* one of "embedded", "kafka"'),
        ('[store.r0]\nkind = "kafka"', r"\[store.r0\] needs the key 'bootstrap'"),
        ('[store.r0]\nkind = "embedded"\nbootstrap = "a:1"', "does not know the key 'bootstrap'"),
        ('[store.r0]\nkind = "kafka"\nbootstrap = "a"', "bootstrap has 'a', .* HOST:PORT"),
        ('[store.r0]\nkind = "kafka"\nbootstrap = "a:0"', "bootstrap has 'a:0', .* HOST:PORT"),
        ('[store.r0]\nkind = "kafka"\nbootstrap = "a:1,"', "bootstrap has '', .* HOST:PORT"),
        (
            '[store.r0]\nkind = "kafka"\nbootstrap = "a:1"\ntopic_prefix = "a/b"',
            "topic_prefix is 'a/b'",
        ),
        (
            '[store.r0]\nkind = "kafka"\nbootstrap = "a:1"\n'
            '[store.r1]\nkind = "kafka"\nbootstrap = "b:1,a:1"',
            "share the Kafka at a:1, .* a Kafka cluster of its own",
        ),
        *(
            (
                f'[store.r0]\nkind = "kafka"\nbootstrap = "a:1"\n[store.r0.settings]\n{setting}',
                sentence,
            )
            for setting, sentence in [
                ('"sasl.password" = "hunter2"', "'sasl.password' in plain words.*\"env:NAME\""),
                ('"ssl.key.password" = "hunter2"', "'ssl.key.password' in plain words"),
                ('"ssl.keystore.password" = "x"', "'ssl.keystore.password' in plain words"),
                ('"ssl.key.pem" = "x"', "'ssl.key.pem' in plain words"),
                ('"sasl.oauthbearer.client.secret" = "x"', "client.secret' in plain words"),
                ('"acks" = "1"', "'acks', which Quorate sets itself"),
                ('"bootstrap.servers" = "b:1"', "'bootstrap.servers', which Quorate sets itself"),
                ('"plugin.library.paths" = "evil"', "which can have programs run"),
                ('"sasl.kerberos.kinit.cmd" = "evil"', "which can have programs run"),
                ('"Rude Key" = "x"', "which is no setting of librdkafka"),
                ('"client.rack" = 1.5', "must be a text, a number, or true or false"),
                ('client.rack = "x"', "a key with dots in it is written in quotes"),
            ]
        ),
    ],
)
def test_a_store_that_cannot_be_is_refused(section: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        with_store(section + "\n")


def test_a_secret_that_was_written_into_the_file_is_not_repeated() -> None:
    section = '[store.r0]\nkind = "kafka"\nbootstrap = "a:1"\n[store.r0.settings]\n'
    with pytest.raises(ConfigError) as error:
        with_store(section + '"sasl.password" = "hunter2"\n')

    assert "hunter2" not in str(error.value)
