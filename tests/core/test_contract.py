"""Contracts: safe defaults, one sentence for every refusal, and the replicas they cost."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.contract import (
    BROADCASTS,
    DISCARDS,
    HISTORY_EVERY_MAX,
    ORDERS,
    PROTECTIONS,
    Contract,
    not_listed,
)
from quorate.core.errors import ContractError
from quorate.core.limits import WINDOW_BATCHES
from quorate.core.quorum import Quorum

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
CLIENTS = st.just(["*"]) | st.lists(NAMES, unique=True, max_size=3)
DURATIONS = st.sampled_from(["500ms", "30s", "5m", "2h", "7d", "7us"])
# For every key, values that are good in some contract.
GOOD: dict[str, st.SearchStrategy[object]] = {
    "protection": st.sampled_from(PROTECTIONS),
    "order": st.sampled_from(ORDERS),
    "broadcast": st.sampled_from(BROADCASTS),
    "history_every": st.sampled_from([0, 1, 10, HISTORY_EVERY_MAX]),
    "validated": st.booleans(),
    "event_proofs": st.booleans(),
    "order_group": NAMES,
    "partitions": st.integers(1, 4096),
    "queue_events_max": st.integers(1, 16_777_216),
    "discard": st.sampled_from(DISCARDS),
    "expires_after": DURATIONS,
    "retention": DURATIONS,
    "publishers_max": st.integers(1, 1_000_000),
    "subscribers_max": st.integers(1, 1_000_000),
    "publish": CLIENTS,
    "subscribe": CLIENTS,
}
ANYTHING: st.SearchStrategy[object] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
KEYS = st.sampled_from(sorted(GOOD)) | st.text(max_size=8)
PROBABLE = st.fixed_dictionaries({}, optional=GOOD)
CLIENT_KEYS = {"publishers_max", "subscribers_max", "publish", "subscribe"}


def tables(keys: set[str], **fixed: object) -> st.SearchStrategy[dict[str, object]]:
    """Tables with some of these keys, which go well together."""
    return st.fixed_dictionaries(
        {key: st.just(value) for key, value in fixed.items()},
        optional={key: GOOD[key] for key in sorted(keys | CLIENT_KEYS)},
    )


LIVE_KEYS = {"queue_events_max", "discard", "expires_after"}
LIVE = (
    tables(LIVE_KEYS, protection="crash")
    | tables(LIVE_KEYS, protection="none", order="fifo")
    | tables(LIVE_KEYS, broadcast="vote", order="fifo")
    | tables(LIVE_KEYS | {"history_every"}, broadcast="chain")
    | tables(LIVE_KEYS | {"history_every"}, protection="byzantine")
)
LOG_KEYS = {"order_group", "partitions", "retention"}
LOG = (
    tables(LOG_KEYS, order="total", validated=False)
    | tables(LOG_KEYS | {"event_proofs"}, order="total", validated=True)
    | tables(LOG_KEYS, order="total", protection="crash")
)
WILD = st.dictionaries(KEYS, ANYTHING, max_size=3)


@given(NAMES, st.builds(lambda probable, wild: probable | wild, PROBABLE, WILD))
def test_any_table_is_a_contract_or_is_refused_with_a_sentence(
    name: str, table: dict[str, object]
) -> None:
    try:
        contract = Contract.parse(name, table)
    except ContractError as error:
        assert str(error).startswith(f"topic {name!r}: ")
    else:
        assert Contract.parse(name, contract.table()) == contract


@given(LIVE | LOG)
def test_a_contract_written_out_and_read_again_is_the_same(table: dict[str, object]) -> None:
    contract = Contract.parse("alerts", table)

    assert Contract.parse("alerts", contract.table()) == contract


def test_a_topic_that_says_nothing_is_safe() -> None:
    assert Contract.parse("alerts", {}).table() == {
        "protection": "byzantine",
        "order": "none",
        "broadcast": "authenticated",
        "history_every": 64,
        "queue_events_max": 65_536,
        "discard": "never",
        "publishers_max": 1024,
        "subscribers_max": 1024,
        "publish": ["*"],
        "subscribe": ["*"],
    }


@pytest.mark.parametrize(
    ("broadcast", "history_every"),
    [("vote", 0), ("authenticated", 64), ("reliable", 0), ("chain", 64)],
)
def test_what_may_lose_events_comes_with_histories(broadcast: str, history_every: int) -> None:
    assert Contract.parse("t", {"broadcast": broadcast}).history_every == history_every
    assert Contract.parse("t", {"broadcast": broadcast, "history_every": 0}).history_every == 0


def test_a_publisher_is_stopped_for_its_history_before_its_window_ends() -> None:
    assert 2 * HISTORY_EVERY_MAX <= WINDOW_BATCHES


def test_every_key_is_read_into_its_field() -> None:
    live = Contract.parse(
        "t",
        {
            "protection": "byzantine",
            "order": "fifo",
            "broadcast": "chain",
            "history_every": 10,
            "queue_events_max": 7,
            "discard": "oldest",
            "expires_after": "500ms",
            "publishers_max": 2,
            "subscribers_max": 3,
            "publish": ["ann"],
            "subscribe": ("bob", "eve"),
        },
    )
    log = Contract.parse(
        "t",
        {
            "order": "total",
            "validated": True,
            "order_group": "all",
            "partitions": 8,
            "retention": "7d",
            "publish": [],
        },
    )

    assert (live.order, live.broadcast, live.history_every) == ("fifo", "chain", 10)
    assert (live.queue_events_max, live.discard, live.expires_after_us) == (7, "oldest", 500_000)
    assert (live.publishers_max, live.subscribers_max) == (2, 3)
    assert (live.publish, live.subscribe) == (("ann",), ("bob", "eve"))
    assert not live.is_log
    assert (log.validated, log.order_group, log.partitions) == (True, "all", 8)
    assert (log.retention_us, log.publish, log.is_log) == (604_800_000_000, (), True)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"brodcast": "vote"}, "no key 'brodcast'; did you mean 'broadcast'?"),
        ({"queue_max": 1}, "no key 'queue_max'; did you mean 'queue_events_max'?"),
        ({"zzz": 1}, "no key 'zzz'; allowed are protection, order, broadcast,"),
        ({"z" * 10_000: 1}, f"no key '{'z' * 60}'; allowed are"),
        ({"protection": "total"}, "protection is 'total'; allowed are none, crash, byzantine"),
        ({"protection": ["crash"]}, "protection is ['crash']; allowed are none, crash,"),
        ({"order": "causal"}, "order is 'causal'; allowed are none, fifo, total"),
        ({"broadcast": "bracha"}, "broadcast is 'bracha'; allowed are vote, authenticated,"),
        ({"discard": "all"}, "discard is 'all'; allowed are oldest, newest, never"),
        ({"history_every": -1}, "history_every is -1; allowed are 0 to 2048"),
        ({"history_every": 2049}, "history_every is 2049; allowed are 0 to 2048"),
        ({"history_every": True}, "history_every is True; allowed are 0 to 2048"),
        ({"history_every": 64.0}, "history_every is 64.0; allowed are 0 to 2048"),
        ({"validated": 1}, "validated is 1; allowed are true and false"),
        ({"order_group": 7}, "order_group is 7; allowed is a name"),
        ({"order_group": "a b"}, "order_group 'a b' is not a name; allowed are 1 to 200"),
        ({"partitions": 0}, "partitions is 0; allowed are 1 to 4096"),
        ({"queue_events_max": 0}, "queue_events_max is 0; allowed are 1 to 16777216"),
        ({"queue_events_max": 16**5000}, "queue_events_max is a value too long to show; allowed"),
        ({"expires_after": 30}, "expires_after is 30; allowed is a duration such as '30s'"),
        ({"expires_after": "soon"}, "expires_after: 'soon' is not a duration; allowed are"),
        ({"expires_after": "0s"}, "expires_after is '0s'; leave it out if there is no limit"),
        ({"retention": "0d"}, "retention is '0d'; leave it out if there is no limit"),
        ({"publishers_max": 0}, "publishers_max is 0; allowed are 1 to 1000000"),
        ({"subscribers_max": "9"}, "subscribers_max is '9'; allowed are 1 to 1000000"),
        ({"publish": "ann"}, "publish is 'ann'; allowed is a list of client names, or ['*']"),
        ({"publish": [1]}, "publish is [1]; allowed is a list of client names"),
        ({"subscribe": [""]}, "subscribe is ['']; allowed is a list of client names"),
        ({"subscribe": ["ann", "ann"]}, "subscribe names a client twice"),
        ({"publish": ["*", "ann"]}, "publish names a client twice; '*' is everyone and stands"),
        (
            {"protection": "crash", "broadcast": "vote"},
            "broadcast says how an unordered byzantine topic reaches its subscribers; leave it "
            "out, or set protection to 'byzantine'",
        ),
        ({"order": "total", "broadcast": "vote"}, "broadcast says how an unordered byzantine"),
        ({"protection": "none", "broadcast": "chain"}, "broadcast says how an unordered"),
        (
            {"broadcast": "vote", "history_every": 10},
            "histories repair what authenticated broadcast and chain may lose; set history_every "
            "to 0, or broadcast to 'authenticated' or 'chain'",
        ),
        ({"order": "total", "history_every": 10}, "histories repair what authenticated"),
        ({"protection": "crash", "history_every": 10}, "histories repair what authenticated"),
        ({"validated": True}, "a validated topic proves to others what was published"),
        (
            {"validated": True, "order": "total", "protection": "crash"},
            "which takes replicas that bear liars, in total order; leave validated out, or set "
            "protection to 'byzantine' and order to 'total'",
        ),
        (
            {"order": "total", "event_proofs": True},
            "event_proofs proves one event without its neighbours, on a validated topic; leave it "
            "out, or set validated to true",
        ),
        ({"event_proofs": "yes"}, "event_proofs is 'yes'; allowed are true and false"),
        ({"order_group": "all"}, "an order group gives several topics one order"),
        ({"partitions": 2}, "a live topic has one partition; set partitions to 1, or order to"),
        ({"order": "total", "queue_events_max": 9}, "a log topic is read from disk and has no"),
        ({"order": "total", "discard": "never"}, "a log topic discards nothing before"),
        ({"order": "total", "expires_after": "1s"}, "expires_after is for live events; use"),
        ({"retention": "7d"}, "a live topic keeps nothing for later; use expires_after, or set"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(table: dict[str, object], why: str) -> None:
    with pytest.raises(ContractError) as refusal:
        Contract.parse("alerts", table)

    assert str(refusal.value).startswith("topic 'alerts': ")
    assert why in str(refusal.value)


@pytest.mark.parametrize("name", ["", ".", "-x", "a b", "a/b", "a\n", "ü", "x" * 201])
def test_a_topic_needs_a_name_that_is_safe_everywhere(name: str) -> None:
    with pytest.raises(ContractError, match="is not a name; allowed are 1 to 200 letters"):
        Contract.parse(name, {})


@pytest.mark.parametrize(
    "table",
    [
        {"partitions": 1},
        {"validated": False},
        {"order": "total", "history_every": 0},
        {"protection": "crash", "history_every": 0, "validated": False, "partitions": 1},
        {"protection": "none", "order": "total", "retention": "1d"},
    ],
)
def test_asking_for_nothing_is_allowed_everywhere(table: dict[str, object]) -> None:
    contract = Contract.parse("t", table)

    assert Contract.parse("t", contract.table()) == contract


@pytest.mark.parametrize(
    ("table", "protocol", "replicas"),
    [
        ({"protection": "none"}, "first-answer", [1, 1, 1]),
        ({"protection": "none", "order": "total"}, "ordering", [1, 1, 1]),
        ({"protection": "crash"}, "first-answer", [1, 2, 3]),
        ({"protection": "crash", "order": "fifo"}, "first-answer", [1, 2, 3]),
        ({"protection": "crash", "order": "total"}, "ordering", [1, 3, 5]),
        ({"broadcast": "vote"}, "vote", [1, 3, 5]),
        ({"broadcast": "authenticated"}, "authenticated", [1, 4, 7]),
        ({"broadcast": "reliable"}, "reliable", [1, 4, 7]),
        ({"broadcast": "chain"}, "chain", [1, 4, 7]),
        ({"order": "total"}, "ordering", [1, 4, 7]),
        ({"order": "total", "validated": True}, "ordering", [1, 4, 7]),
    ],
)
def test_each_contract_has_its_protocol_and_its_price(
    table: dict[str, object], protocol: str, replicas: list[int]
) -> None:
    contract = Contract.parse("t", table)

    assert contract.protocol == protocol
    assert [contract.replicas(f) for f in range(3)] == replicas


@pytest.mark.parametrize("f", range(5))
@pytest.mark.parametrize(
    ("table", "needed"),
    [
        ({"protection": "crash"}, lambda quorum: 1),
        ({"protection": "crash", "order": "total"}, lambda quorum: quorum.n // 2 + 1),
        ({"broadcast": "vote"}, lambda quorum: quorum.one_correct),
        ({"broadcast": "authenticated"}, lambda quorum: quorum.majority_correct),
        ({"broadcast": "reliable"}, lambda quorum: quorum.majority_correct),
        ({"broadcast": "chain"}, lambda quorum: quorum.majority_correct),
        ({"order": "total"}, lambda quorum: quorum.intersecting),
    ],
)
def test_the_price_is_the_least_with_which_the_contract_can_always_be_kept(
    table: dict[str, object], needed: Callable[[Quorum], int], f: int
) -> None:
    groups = (Quorum(n, f) for n in range(1, 5 * f + 2))
    least = next(group.n for group in groups if group.reachable >= needed(group))

    assert Contract.parse("t", table).replicas(f) == least


@pytest.mark.parametrize(
    ("table", "n", "f", "why"),
    [
        ({}, 4, 2, "needs 7 replicas for f = 2 under byzantine/authenticated; this cluster has 4"),
        ({"broadcast": "vote"}, 2, 1, "needs 3 replicas for f = 1 under byzantine/vote"),
        ({"protection": "crash"}, 1, 1, "needs 2 replicas for f = 1 under crash/unordered"),
        ({"protection": "crash", "order": "total"}, 2, 1, "needs 3 replicas .* under crash/total"),
        ({"order": "total"}, 3, 1, "needs 4 replicas for f = 1 under byzantine/total"),
        ({"protection": "none"}, 0, 0, "needs 1 replica for f = 0 under none/unordered"),
    ],
)
def test_a_cluster_that_is_too_small_is_told_how_large_it_must_be(
    table: dict[str, object], n: int, f: int, why: str
) -> None:
    contract = Contract.parse("x", table)

    with pytest.raises(ContractError, match=f"^topic 'x' {why}"):
        contract.check("x", n, f)
    contract.check("x", contract.replicas(f), f)
    contract.check("x", contract.replicas(f) + 1, f)


def test_a_guarantee_that_is_not_kept_yet_must_not_be_believed_in() -> None:
    grouped = Contract.parse("alerts", {"order": "total", "order_group": "all"})
    with pytest.raises(ContractError, match="topic 'alerts' asks for order_group, which this "):
        grouped.check_available("alerts")
    Contract.parse("alerts", {"order": "total"}).check_available("alerts")


def test_a_guarantee_that_is_not_kept_yet_is_not_offered_either() -> None:
    with pytest.raises(ContractError, match="allowed are protection, order, ") as unknown:
        Contract.parse("alerts", {"colour": "red"})
    assert "order_group" not in str(unknown.value)
    with pytest.raises(ContractError, match="this version of Quorate does not have that yet"):
        Contract.parse("alerts", {"order_group": "all"})


def test_whoever_is_not_on_a_list_hears_who_is_or_how_many_are() -> None:
    many = tuple(f"c{number}" for number in range(30))

    assert not_listed("bob", "publish on", "news", ("anna", "ben")) == (
        "bob may not publish on 'news'; anna, ben may"
    )
    assert not_listed("bob", "subscribe to", "news", ()) == (
        "bob may not subscribe to 'news'; nobody may"
    )
    assert not_listed("bob", "publish on", "news", many) == (
        "bob may not publish on 'news'; 30 others may"
    )
