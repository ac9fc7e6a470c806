#include "transport/mpi/mpi_module.h"

#include <dlfcn.h>

#include "base/errors.h"

namespace rr {

MpiModule::MpiModule(const std::string& path)
    : path_(path), library_(::dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY), ::dlclose) {
  if (library_ != nullptr) return;
  const char* why = ::dlerror();
  throw UnavailableError("MPI: " + path + " is not loaded in this process" + (why ? std::string(": ") + why : "") +
                         "; import mpi4py.MPI first");
}

void* MpiModule::find(const char* symbol) const {
  void* found = ::dlsym(RTLD_DEFAULT, symbol);
  return found != nullptr ? found : ::dlsym(library_.get(), symbol);
}

}  // namespace rr
