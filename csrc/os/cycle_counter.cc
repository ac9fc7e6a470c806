#include "os/cycle_counter.h"

#include <fstream>
#include <string>

namespace rr {

bool has_cycle_counter() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return std::getline(file, name) && (name == "tsc" || name == "arch_sys_counter");
}

}  // namespace rr
