"""How the ranks of several hosts find each other over TCP."""

from mutations.row import Mutation

ROWS = (
    Mutation(
        "secret-in-the-text",
        "ringreduce/job/tcp_job.py",
        "({len(text)} characters, ",
        "({text}, ",
        (
            "test_tcp.py::test_shutdown_and_init_again_at_the_same_address",  # its ranks import the file
            "test_secrets.py::test_what_another_version_tells_is_refused_without_its_secret",
        ),
    ),
    Mutation(
        "strangers-take-all",
        "ringreduce/job/tcp_rendezvous_server.py",
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
)
