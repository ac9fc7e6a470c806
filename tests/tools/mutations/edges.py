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
        "hold-out",
        "csrc/gpu/cuda/cuda_holds.cc",
        "return out_.empty() && !has_captured_;",
        "return true;",
        ("cuda_memory_test",),
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
