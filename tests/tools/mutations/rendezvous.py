"""How the ranks of several hosts find each other over TCP."""

from mutations.row import Mutation

IN_RANKS = "test_distributed_failure.py::test_an_uncaught_exception_is_told_to_the_others"
"""Its ranks import the broken file; ranks as threads do not show that."""
AWAITED = "test_listening_ports.py::test_a_port_where_rank_0_is_awaited_is_left_to_it"

ROWS = (
    Mutation(
        "secret-in-the-text",
        "ringreduce/job/tcp/job.py",
        "({len(text)} characters, ",
        "({text}, ",
        (
            "test_tcp.py::test_shutdown_and_init_again_at_the_same_address",  # its ranks import the file
            "test_secrets.py::test_what_another_version_tells_is_refused_without_its_secret",
        ),
    ),
    Mutation(
        "strangers-take-all",
        "ringreduce/job/tcp/rendezvous_server.py",
        "                self._make_room(error)\n",
        "                raise\n",
        ("test_tcp_rendezvous.py::test_strangers_do_not_take_the_last_descriptors",),
    ),
    Mutation(
        "other-settings",
        "ringreduce/job/places.py",
        'one["settings"].get(name, "not known")) != value',
        'one["settings"].get(name, "not known")) is None',
        ("test_tcp_rendezvous.py::test_ranks_with_other_settings_all_say_so",),
    ),
    Mutation(
        "name-known-at-once",
        "ringreduce/job/tcp/rendezvous_server.py",
        "if not may_come or ",
        "if may_come or ",
        (
            "test_tcp.py::test_shutdown_and_init_again_at_the_same_address",  # its ranks import the file
            "test_network_troubles.py::test_a_name_that_is_known_late",
        ),
    ),
    Mutation(
        "one-hosts-group-of-others",
        "ringreduce/job/store_rendezvous.py",
        '    secret = mac(secret, b"store", group.encode())\n',
        "",
        (IN_RANKS, "test_store_rendezvous.py::test_two_groups_do_not_meet_whatever_is_in_their_stores"),
    ),
    Mutation(
        "group-of-others",
        "ringreduce/job/store_rendezvous.py",
        " {self._group}",
        "",
        (IN_RANKS, "test_store_rendezvous.py::test_two_groups_do_not_meet_whatever_is_in_their_stores"),
    ),
    Mutation(
        "another-secret",
        "ringreduce/job/store_rendezvous.py",
        'if not same_mac(record["proof"].encode(),',
        'if "" and not same_mac(record["proof"].encode(),',
        (IN_RANKS, "test_store_rendezvous.py::test_ranks_that_disagree_are_told"),
    ),
    Mutation(
        "keys-of-the-group-before",
        "ringreduce/torch/distributed/membership.py",
        "                self.group.barrier(None)\n",
        "                pass\n",
        (IN_RANKS, "test_distributed_failure.py::test_a_group_begins_once_all_have_forgotten_the_store"),
    ),
    Mutation(
        "awaited-port",
        "ringreduce/job/tcp/rendezvous.py",
        "if str(port) not in awaited]",
        "if port]",
        ("test_listening_ports.py::test_ranks_listen_at_no_other", AWAITED),
    ),
    Mutation(
        "rank-without-a-port",
        "ringreduce/job/tcp/rendezvous_server.py",
        '        if record["problem"]:\n',
        "        if False:\n",
        ("test_listening_ports.py::test_too_few_are_an_error",),
    ),
    Mutation(
        "two-hooks",
        "ringreduce/job/failure/uncaught.py",
        "    if is_inner:\n        return\n",
        "",
        ("test_uncaught.py::test_when_it_aborts",),
    ),
)
