#include "collective/select.h"

#include <array>

#include "base/errors.h"

namespace rr {
namespace {
constexpr std::array<const char*, 11> kNames = {
    "auto",         "two_shot", "direct",    "ring",     "recursive_doubling", "tree",
    "hierarchical", "cuda_ipc", "cuda_nccl", "cuda_mpi", "cuda_staged"};
constexpr size_t kForcible = static_cast<size_t>(Algo::kIpc);  // the rest are paths, chosen by another knob
}  // namespace

Algo algo_from(const std::string& text) {
  for (size_t i = 0; i < kForcible; ++i) {
    if (text == kNames[i]) return static_cast<Algo>(i);
  }
  throw InvalidArgumentError("no algorithm is called '" + text + "'");
}

const char* name(Algo algo) { return kNames[static_cast<size_t>(algo)]; }

const char* path_name(Algo algo) { return name(algo) + sizeof("cuda_") - 1; }

Algo select_allreduce(Algo forced, const Reduction& reduction, bool registered) {
  if (forced == Algo::kTwoShot) return Algo::kTwoShot;
  if ((forced == Algo::kRing || forced == Algo::kRecursiveDoubling) && foldable_in_place(reduction)) return forced;
  return registered ? Algo::kDirect : Algo::kTwoShot;
}

Algo select_movement(Algo forced, bool is_broadcast, bool registered) {
  if (is_broadcast && forced == Algo::kTree) return Algo::kTree;
  return registered && forced != Algo::kTwoShot ? Algo::kDirect : Algo::kTwoShot;
}

Algo select_across_hosts(Algo forced, const Reduction* reduction, Codec codec) {
  const bool linked = forced == Algo::kRing || forced == Algo::kRecursiveDoubling;
  const bool fits = reduction != nullptr && foldable_in_place(*reduction) && codec == Codec::kNone;
  return linked && fits ? forced : Algo::kHierarchical;
}

}  // namespace rr
