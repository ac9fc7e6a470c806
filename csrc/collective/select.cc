#include "collective/select.h"

#include <array>

#include "base/errors.h"

namespace rr {
namespace {
constexpr std::array<const char*, 7> kNames = {"auto", "two_shot",    "direct", "ring", "recursive_doubling",
                                               "tree", "hierarchical"};
}

Algo algo_from(const std::string& text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<Algo>(i);
  }
  throw InvalidArgumentError("no algorithm is called '" + text + "'");
}

const char* name(Algo algo) { return kNames[static_cast<size_t>(algo)]; }

Algo select_allreduce(Algo forced, const Reduction& reduction, bool registered) {
  if (forced == Algo::kTwoShot) return Algo::kTwoShot;
  if ((forced == Algo::kRing || forced == Algo::kRecursiveDoubling) && foldable_in_place(reduction)) return forced;
  return registered ? Algo::kDirect : Algo::kTwoShot;
}

Algo select_movement(Algo forced, bool is_broadcast, bool registered) {
  if (is_broadcast && forced == Algo::kTree) return Algo::kTree;
  return registered && forced != Algo::kTwoShot ? Algo::kDirect : Algo::kTwoShot;
}

Algo select_across_hosts(Algo forced, const Reduction* reduction) {
  const bool linked = forced == Algo::kRing || forced == Algo::kRecursiveDoubling;
  return linked && reduction != nullptr && foldable_in_place(*reduction) ? forced : Algo::kHierarchical;
}

}  // namespace rr
