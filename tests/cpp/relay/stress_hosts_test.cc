// Random interleavings on several hosts, with links that keep the order of all messages, and with links that delay them
// at random, so that one leader's message overtakes another's. RR_TEST_ROUNDS and RR_TEST_SEED as in stress_test.cc.
#include <algorithm>

#include "doctest/doctest.h"
#include "support/stress.h"

namespace rr::test {
namespace {

void stress_layouts(const Stress& usual) {
  const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", "30000"}, {"RINGREDUCE_FUSION_LINGER_US", "200"}};
  for (size_t i = 0; i < kLayouts.size(); ++i) {
    Stress stress = usual;
    stress.host_of = kLayouts[i];
    stress.seed = seed(usual.seed + static_cast<unsigned>(i));
    CAPTURE(i);
    CAPTURE(stress.seed);
    size_t operations = 0;
    CHECK_NOTHROW(operations = StressRun(stress).run());
    MESSAGE("layout " << i << ": " << operations << " random operations");
  }
}

TEST_CASE("random operations on overlapping groups on several hosts, with mismatches and joins") {
  Stress stress;
  stress.rounds = rounds(60);
  stress.seed = 100;
  stress_layouts(stress);
}

TEST_CASE("random operations on several hosts whose links delay what they carry") {
  Stress stress;
  stress.rounds = rounds(30);
  stress.seed = 200;
  stress.delayed = true;
  stress_layouts(stress);
}

TEST_CASE("random operations on several hosts, from the start to the end of short lives") {
  const int lives = std::max(rounds(1000) / 100, 1);  // a life takes as long as a hundred rounds
  for (int life = 0; life < lives; ++life) {
    Stress stress;
    stress.rounds = life % 3;
    stress.seed = 300 + 10 * static_cast<unsigned>(life);
    stress.delayed = true;
    stress.ends_early = true;
    stress.capacity = 64;
    stress_layouts(stress);
  }
}

}  // namespace
}  // namespace rr::test
