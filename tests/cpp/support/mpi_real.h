// The MPI that RR_TEST_MPI names (a path of libmpi.so), initialised at its first use and finalised when the program
// ends. Its handles come from the library's symbols or are the numbers of its ABI; mpi4py has no part in it.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "transport/mpi/mpi_library.h"

namespace rr {

class RealMpi {
 public:
  struct Handles {
    uintptr_t comm_self = 0;
    uintptr_t byte = 0;
    uintptr_t errors_return = 0;
    size_t size = 0;          // bytes of one
    int thread_multiple = 3;  // MPI_THREAD_MULTIPLE
  };

  explicit RealMpi(const std::string& path) : module_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (module_ == nullptr) throw std::runtime_error(::dlerror());
    handles = find_handles();
    library = MpiLibrary::open(path, handles.size);
    int provided = 0;
    if (function<int(int*, char***, int, int*)>("MPI_Init_thread")(nullptr, nullptr, handles.thread_multiple,
                                                                   &provided) != 0) {
      throw std::runtime_error("MPI_Init_thread failed");
    }
  }
  ~RealMpi() { function<int()>("MPI_Finalize")(); }
  RealMpi(const RealMpi&) = delete;
  RealMpi& operator=(const RealMpi&) = delete;

  Handles handles;
  std::shared_ptr<MpiLibrary> library;

 private:
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(module_, name));
  }
  uintptr_t address(const char* name) const { return reinterpret_cast<uintptr_t>(::dlsym(module_, name)); }

  Handles find_handles() const {
    if (address("ompi_mpi_comm_self") != 0) {
      return {address("ompi_mpi_comm_self"), address("ompi_mpi_byte"), address("ompi_mpi_errors_return"), sizeof(void*),
              3};
    }
    int major = -1;
    int minor = -1;
    auto* version = function<int(int*, int*)>("MPI_Abi_get_version");
    if (version != nullptr && version(&major, &minor) == 0 && major > 0)
      return {0x102, 0x247, 0x143, sizeof(void*), 4096};
    return {0x44000001, 0x4c00010d, 0x54000001, sizeof(int), 3};  // the MPICH family
  }

  void* module_;
};

inline bool has_real_mpi() { return std::getenv("RR_TEST_MPI") != nullptr; }

inline RealMpi& real_mpi() {
  static RealMpi mpi(std::getenv("RR_TEST_MPI"));
  return mpi;
}

}  // namespace rr
