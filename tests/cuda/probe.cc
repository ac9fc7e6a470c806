#include "probe.h"

#include <unistd.h>

namespace rr {

int probe(const std::string& name) {
  std::vector<Probe> probes;
  add_memory_probes(probes);
  add_stream_probes(probes);
  add_call_probes(probes);
  for (const Probe& one : probes) {
    if (name.empty()) std::printf("%s\n", one.name.c_str());
    if (name != one.name) continue;
    try {
      // Not freed: the driver may wait for what has been left on the GPU.
      one.run(*std::make_unique<Rig>().release());
    } catch (const std::exception& error) {
      answer(name, false, error.what());
    }
    ::_exit(0);
  }
  if (!name.empty()) throw InvalidArgumentError("rr_gpu probe: there is no " + name);
  return 0;
}

}  // namespace rr
