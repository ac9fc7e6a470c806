// With RR_TEST_CORE=K the tests run on one core of the n that the process may use: on number K mod n, counted from 0.
#include <sched.h>

#include <cstdlib>

namespace rr::test {
namespace {

bool on_one_core() {
  const char* const wanted = std::getenv("RR_TEST_CORE");
  cpu_set_t allowed;
  if (wanted == nullptr || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  int skipped = std::atoi(wanted) % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skipped-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return ::sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

[[maybe_unused]] const bool is_on_one_core = on_one_core();  // before the first thread, which inherits it

}  // namespace
}  // namespace rr::test
