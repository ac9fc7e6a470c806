"""What leaders of hosts tell each other: statements, order, joins, departures, verdicts."""

from mutations.row import Mutation

ROWS = (
    Mutation(
        "overwritten-statement",
        "csrc/group/across.cc",
        "return unread < kUnnamedCells + board_.capacity() && is_passed_on(cell);",
        "return unread < kUnnamedCells + board_.capacity();",
        ("ledger_steps_test",),
    ),
    Mutation(
        "note-room",
        "csrc/group/across.cc",
        "return unread < kUnnamedCells + board_.capacity() && is_passed_on(cell);",
        "return is_passed_on(cell);",
        ("ledger_steps_test",),
    ),
    Mutation(
        "entry-too-early",
        "csrc/engine/mirror_receive.cc",
        "      if (!own_.complete(ticket)) return moved;\n",
        "",
        ("held_wires_test::an entry of the log",),
    ),
    Mutation(
        "eager-between-hosts",
        "csrc/engine/mirror_receive.cc",
        "std::memcpy(board_.eager(rank, static_cast<size_t>(index % kEagerCount)), frame.take(nbytes), nbytes);",
        "std::memcpy(board_.eager(rank, 0), frame.take(nbytes), nbytes);",
        ("hosts_test",),
    ),
    Mutation(
        "joined-too-early",
        "csrc/engine/mirror.cc",
        "    if (joined && !sent.has_joined) {\n",
        "    if (!sent.has_joined && (joined || board_.header().joined_count.load() != 0)) {\n",
        ("join_hosts_test",),
    ),
    Mutation(
        "join-last",
        "csrc/engine/mirror_receive.cc",
        "if (hosts_.of[static_cast<size_t>(rank)] == 0) last_joined_ = last_joined;",
        "last_joined_ = last_joined;",
        ("join_hosts_test",),
    ),
    Mutation(
        "join-gate",
        "csrc/engine/mirror_receive.cc",
        "      return line.gate == Gate::kNone && apply_statement(frame, false);\n",
        "      return apply_statement(frame, false);\n",
        ("held_wires_test::what a rank states after",),
    ),
    Mutation(
        "join-gate-named",
        "csrc/engine/mirror_receive.cc",
        "      return line.gate == Gate::kNone && apply_statement(frame, true);\n",
        "      return apply_statement(frame, true);\n",
        ("held_wires_test",),
    ),
    Mutation(
        "left-after-join",
        "csrc/engine/mirror_receive.cc",
        "line.left_after.push_back({rank, attendance});",
        "board_.line(rank).attendance.store(attendance);",
        ("held_wires_test::a rank that leaves after",),
    ),
    Mutation(
        "last-word",
        "csrc/engine/mirror.cc",
        "  if (!everybody) say_last_word();\n",
        "",
        ("leave_hosts_test::what only a leader",),
        limit_s=10,
    ),
    Mutation(
        "leader-parts",
        "csrc/engine/mirror.cc",
        "  } while (!(have_all_left(everybody) && is_all_sent()) && !deadline.passed());\n",
        "  } while (!is_all_sent() && !deadline.passed());\n",
        ("leave_hosts_test",),
    ),
    Mutation(
        "vote",
        "csrc/engine/mirror_stuck.cc",
        "refused_ |= frame.take<uint32_t>() == 0;",
        "frame.take<uint32_t>();",
        ("held_wires_test",),
    ),
    Mutation(
        "set-channels",
        "csrc/engine/group.cc",
        "return context.remote_link(world_rank, id * (kChannels + 1) + channel);",
        "return context.remote_link(world_rank, 0 * id + channel);",
        ("hosts_test::groups come and go",),
        limit_s=15,
    ),
)
