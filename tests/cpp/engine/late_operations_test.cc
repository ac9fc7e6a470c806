// The warning about an operation that takes long: one for all that it is about.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// What is written to stderr meanwhile.
class CapturedErrors {
 public:
  CapturedErrors() : file_(create_memfd("stderr", 0)), before_(Fd::duplicate(STDERR_FILENO)) {
    ::dup2(file_.get(), STDERR_FILENO);
  }
  ~CapturedErrors() { ::dup2(before_.get(), STDERR_FILENO); }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;

  std::string text() const {
    std::ifstream file("/proc/self/fd/" + std::to_string(file_.get()));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  int count(const std::string& part) const {
    const std::string all = text();
    int found = 0;
    for (size_t at = 0; (at = all.find(part, at)) != std::string::npos; at += part.size()) ++found;
    return found;
  }

 private:
  const Fd file_;
  const Fd before_;
};

void let_another_one_speak() { std::this_thread::sleep_for(std::chrono::milliseconds(700)); }

TEST_CASE("late operations: one rank speaks for all that wait for a rank, once for all that they have called") {
  const Environment environment{{"RINGREDUCE_STALL_WARNING", "1"}};
  CapturedErrors errors;
  run_ranks(4, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 2) {
      wait_for([&] { return errors.count("has been waiting") != 0; });
      let_another_one_speak();
    }
    std::vector<Sum> sums;
    for (int i = 0; i < 20; ++i) sums.push_back(start_sum(rank, rank.world, 3000, i, "sum " + std::to_string(i)));
    for (const Sum& sum : sums) finish_sum(rank.world, sum);
    barrier(rank.world);
  });
  const std::string text = errors.text();
  CAPTURE(text);
  CHECK(errors.count("has been waiting") == 1);
  CHECK(errors.count("[rank 0]") == 1);
  CHECK(errors.count("for rank(s) 2; the other ranks have submitted it. Rank 2 called barrier #0 last; its process ") ==
        1);
}

TEST_CASE("late operations: ranks that are late one after the other are told of one after the other") {
  const Environment environment{{"RINGREDUCE_STALL_WARNING", "0.3"}};
  CapturedErrors errors;
  run_ranks(3, [&](Rank& rank) {
    barrier(rank.world);
    for (int late = 1; late < 3; ++late) {
      if (rank.rank == late) {
        const std::string part = "for rank(s) " + std::to_string(late) + ";";
        wait_for([&] { return errors.count(part) != 0; });
      }
      sum_now(rank, rank.world, 3000, 1);
    }
  });
  CHECK(errors.count("has been waiting") == 2);
}

}  // namespace
}  // namespace rr::test
