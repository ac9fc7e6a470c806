"""measure, framework, and cuda on a driver that runs on the CPU."""

from mutations.row import Mutation

ROWS = (
    # --- measure ---
    Mutation(
        "bench-rewrites",
        "csrc/measure/bench.cc",
        "    std::memcpy(job.src.data, original.data(), original.size());\n",
        "",
        ("bench_test",),
    ),
    Mutation(
        "other-plan",
        "csrc/measure/tuning.cc",
        "    if (hash_of(rank) == hash_of(first)) continue;\n",
        "    continue;\n",
        ("tuning_test",),
        limit_s=30,
    ),
    Mutation(
        "plan-taken",
        "csrc/measure/tuning.cc",
        "if (is_planned) tuning.chunk_nbytes = plan.chunk_nbytes;",
        "",
        ("tuning_test",),
    ),
    Mutation(
        "sizes-together",
        "csrc/measure/tuning.cc",
        "  const size_t least = least_chunk(group.size());\n",
        "  const size_t least = 64;\n",
        ("tuning_test",),
    ),
    Mutation(
        "plan-fits",
        "ringreduce/plan.py",
        "if self.plan is not None and ranks_by_host(hosts) == self.plan.ranks:",
        "if self.plan is not None:",
        ("test_plan.py",),
    ),
    Mutation(
        "plan-unusable",
        "csrc/measure/tuning.cc",
        "    if (hash_of(rank) != TuningPlan::kUnusable) continue;\n",
        "    continue;\n",
        ("tuning_test",),
        limit_s=30,
    ),
    Mutation(
        "link-records",
        "csrc/engine/link_records.cc",
        "record.nbytes = links[i].nbytes - last_[i].nbytes;",
        "record.nbytes = links[i].nbytes;",
        ("slow_links_test",),
    ),
    Mutation(
        "worth-a-change",
        "ringreduce/tuning/choosing.py",
        "best = candidates[times.index(least)] if least < WORTH * usual else sizes",
        "best = candidates[times.index(least)]",
        ("test_tune.py",),
    ),
    # --- framework ---
    Mutation(
        "set-root",
        "csrc/framework/calls.cc",
        "request.root = static_cast<int>(at - member.ranks.begin());",
        "request.root = call.root_rank;",
        ("calls_test",),
    ),
    Mutation(
        "set-membership",
        "csrc/framework/calls.cc",
        "const bool member = !group.expired();",
        "const bool member = true;",
        ("calls_test",),
    ),
    Mutation(
        "row-counts",
        "csrc/framework/table.cc",
        "const std::vector<uint64_t>& list = outcome->operations[call]->counts;",
        "const std::vector<uint64_t>& list = outcome->operations[0]->counts;",
        ("calls_test",),
    ),
    # --- cuda ---
    Mutation(
        "work-stream-order",
        "csrc/gpu/cuda/cuda_work_streams.cc",
        "  RR_CUDA(context_, stream_wait_event, stream(work_stream), event_of(mark), 0);\n",
        "",
        ("cuda_device_test",),
    ),
    Mutation(
        "after-the-stream",
        "csrc/engine/gpu/device_thread.cc",
        "      is_reached = false;\n      if (reinterpret",
        "      if (reinterpret",
        ("device_queue_test",),
    ),
    Mutation(
        "mapping-closed-at-once",
        "csrc/gpu/cuda/cuda_imports.cc",
        "if (which->second.kind != Mapped::Kind::kOwn) forgotten_.push_back(which->second);",
        "close(which->second);",
        ("cuda_peers_test",),
    ),
    Mutation(
        "stale-export",
        "csrc/gpu/cuda/cuda_exports.cc",
        "mixed(uid + piece.id *",
        "mixed(uid + piece.base *",
        ("cuda_peers_test",),
    ),
    Mutation(
        "slot-reuse",
        "csrc/gpu/cuda/launch/cuda_kernels.cc",
        "is_older && is_free(slot)",
        "is_older",
        ("cuda_device_test",),
    ),
)
