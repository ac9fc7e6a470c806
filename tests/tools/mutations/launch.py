"""ringrun over several hosts."""

from mutations.row import Mutation

IMPORTERS = (
    "test_remote_parts.py::test_one_other_host",
    "test_remote_parts.py::test_what_a_login_shell_prints_is_not_the_agents",
)
"""Their processes show that they import the broken file; on the lab's hosts, which have folders of their own, those of
the row's own test cannot."""

ROWS = (
    Mutation(
        "cut-result",
        "ringreduce/launch/call.py",
        "if size < LENGTH.size or size != ",
        "if size < LENGTH.size or size < 0 * ",
        (
            "test_run_hosts.py::test_a_rank_that_is_killed_while_it_answers",  # its process imports the file
            "test_run.py::test_a_result_that_is_cut_is_none",
        ),
    ),
    Mutation(
        "result-of-no-call",
        "ringreduce/launch/remote/job.py",
        "        if (news.rank, news.stream) not in self._lines:\n",
        "        if False:\n",
        ("test_remote_agents.py::test_an_agent_is_not_believed",),
    ),
    Mutation(
        "address-of-another-machine",
        "ringreduce/launch/remote/addresses.py",
        'self.end("" if hmac.compare_digest(self._answer, self._right) else',
        'self.end("" if self._answer else',
        ("test_remote_parts.py::test_an_address_counts_where_the_right_host_answers",),
    ),
    Mutation(
        "port-of-rank-0-is-free",
        "ringreduce/launch/remote/addresses.py",
        "        self._kept.append(kept)\n",
        "",
        (
            "test_remote_parts.py::test_an_address_counts_where_the_right_host_answers",  # its child imports the file
            "test_remote_parts.py::test_a_gate_keeps_its_port_for_rank_0",
        ),
    ),
    Mutation(
        "unreached-address",
        "ringreduce/launch/remote/meeting.py",
        "            if not any(reasons[number] for reasons in self._reasons.values()):\n",
        "            if True:\n",
        (*IMPORTERS, "test_ringrun_hosts.py::test_an_address_that_only_one_host_has_is_not_taken"),
    ),
    Mutation(
        "agent-without-ringrun",
        "ringreduce/launch/remote/agent.py",
        "            self._is_alone = not self._is_finished\n",
        "",
        (*IMPORTERS, "test_ringrun_hosts.py::test_a_killed_ringrun_ends_ranks_that_say_and_need_nothing"),
    ),
    Mutation(
        "secret-in-a-variable",
        "ringreduce/launch/remote/agent.py",
        'order["variables"] | {"PWD": folder}\n',
        'order["variables"] | {"PWD": folder, "X": str(order["secret"])}\n',
        (*IMPORTERS, "test_ringrun_hosts.py::test_the_secret_is_in_no_command_line_and_no_variable"),
    ),
    Mutation(
        "output-of-another-host",
        "ringreduce/launch/remote/job.py",
        "        if not host.is_starting or not any(place.rank == news.rank for place in host.places):\n",
        "        if not host.is_starting:\n",
        (*IMPORTERS, "test_remote_agents.py::test_an_agent_is_not_believed"),
        limit_s=30,
    ),
    Mutation(
        "address-by-another-host",
        "ringreduce/launch/remote/meeting.py",
        "        if host != 0 or self._found is not None or",
        "        if self._found is not None or",
        (*IMPORTERS, "test_remote_parts.py::test_only_rank_0s_host_says_where_it_is_found"),
    ),
    Mutation(
        "lost-host",
        "ringreduce/launch/remote/job.py",
        "rank.status, rank.ended, rank.lost = CANNOT_START, time.monotonic(), lost",
        "rank.status, rank.ended, rank.lost = 0, time.monotonic(), lost",
        (*IMPORTERS, "test_remote_agents.py::test_an_agent_dies"),
    ),
    Mutation(
        "lost-words",
        "ringreduce/launch/remote/job.py",
        "        if not alive:\n            self._lose_words(",
        "        if False:\n            self._lose_words(",
        (*IMPORTERS, "test_remote_agents.py::test_an_agent_dies"),
    ),
    Mutation(
        "no-deadline-for-the-start",
        "ringreduce/launch/remote/job.py",
        "        for host in self._hosts:\n            order = {\n",
        '        self.timers.pop("start", None)\n        for host in self._hosts:\n            order = {\n',
        (*IMPORTERS, "test_remote_agents.py::test_an_agent_is_silent_at_the_start"),
        limit_s=20,
    ),
    Mutation(
        "output-without-limit",
        "ringreduce/launch/remote/agent.py",
        "        if self._untaken_nbytes >= OUTPUT_NBYTES:\n            self.pause()\n",
        "",
        (*IMPORTERS, "test_ringrun_hosts.py::test_output_that_nobody_reads_stops_the_ranks_and_not_ringrun"),
        limit_s=60,
    ),
    Mutation(
        "victims-status",
        "ringreduce/launch/job.py",
        "        return next(silent, self.first_failure)\n",
        "        return self.first_failure\n",
        (*IMPORTERS, "test_launch.py::test_a_rank_that_has_lost_another_is_not_the_first_to_fail"),
    ),
    Mutation(
        "report-of-a-stranger",
        "ringreduce/launch/reports.py",
        "            if not hmac.compare_digest(secret, self._secret):",
        "            if False:",
        (
            "test_uncaught.py::test_the_line_about_a_rank_has_its_exception",  # its ringrun imports the file
            "test_uncaught.py::test_reports_that_are_not_the_jobs_are_dropped",
        ),
    ),
    Mutation(
        "signal-while-forking",
        "ringreduce/launch/spawn.py",
        "        signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)\n",
        "",
        ("test_launch.py::test_a_signal_to_a_rank_that_is_being_started_is_not_one_to_ringrun",),
    ),
    Mutation(
        "output-on-a-full-disk",
        "ringreduce/launch/output.py",
        "            if not has_reader_gone and self._lost is not None:\n",
        "            if False:\n",
        ("test_launch_output.py::test_output_that_cannot_be_written",),
    ),
    Mutation(
        "advice-without-need",
        "ringreduce/launch/launch.py",
        "        if self.options.as_horovod or not any(",
        "        if not any(",
        ("test_launch_output.py::test_a_rank_that_finds_no_horovod_is_told_of_the_option",),
    ),
)
