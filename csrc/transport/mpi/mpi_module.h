// The shared library that has MPI's functions, which somebody else has loaded: it stays loaded while this lives.
#pragma once

#include <memory>
#include <string>

namespace rr {

class MpiModule {
 public:
  // Throws UnavailableError if the library of this path is not loaded.
  explicit MpiModule(const std::string& path);

  // What mpi4py itself would call: a symbol of the process at large (a tool that was preloaded) comes first. Null:
  // there is none.
  void* find(const char* symbol) const;
  template <class Function>
  Function* function(const char* symbol) const {
    return reinterpret_cast<Function*>(find(symbol));
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<void, int (*)(void*)> library_;
};

}  // namespace rr
