// One class template over an ABI (mpi_abi.h).

#include "transport/mpi/mpi_library.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <new>
#include <type_traits>

#include "base/errors.h"
#include "transport/mpi/mpi_abi.h"
#include "transport/mpi/mpi_module.h"

namespace rr {
namespace {

constexpr size_t kErrorTextNbytes = 2048;     // MPI_MAX_ERROR_STRING is 256 to 1024
constexpr size_t kVersionTextNbytes = 16384;  // MPI_MAX_LIBRARY_VERSION_STRING is 256 to 8192

// X(name, type)
#define RR_MPI_CALLS(X)                                                                                           \
  X(Initialized, int(int*))                                                                                       \
  X(Finalized, int(int*))                                                                                         \
  X(Query_thread, int(int*))                                                                                      \
  X(Get_library_version, int(char*, int*))                                                                        \
  X(Error_string, int(int, char*, int*))                                                                          \
  X(Error_class, int(int, int*))                                                                                  \
  X(Comm_rank, int(Comm, int*))                                                                                   \
  X(Comm_size, int(Comm, int*))                                                                                   \
  X(Comm_set_errhandler, int(Comm, typename Abi::Errhandler))                                                     \
  X(Comm_idup, int(Comm, Comm*, Request*))                                                                        \
  X(Comm_free, int(Comm*))                                                                                        \
  X(Ialltoall, int(const void*, int, typename Abi::Datatype, void*, int, typename Abi::Datatype, Comm, Request*)) \
  X(Isend, int(const void*, int, typename Abi::Datatype, int, int, Comm, Request*))                               \
  X(Issend, int(const void*, int, typename Abi::Datatype, int, int, Comm, Request*))                              \
  X(Irecv, int(void*, int, typename Abi::Datatype, int, int, Comm, Request*))                                     \
  X(Test, int(Request*, int*, MpiStatus*))                                                                        \
  X(Testsome, int(int, Request*, int*, int*, MpiStatus*))                                                         \
  X(Test_cancelled, int(const void*, int*))                                                                       \
  X(Cancel, int(Request*))

template <class Abi>
class Library final : public MpiLibrary {
 public:
  explicit Library(MpiModule module) : module_(std::move(module)) {
    std::string missing;
#define RR_FIND(name, ...)                                        \
  name##_ = module_.template function<__VA_ARGS__>("MPI_" #name); \
  if (name##_ == nullptr) missing += " MPI_" #name;
    RR_MPI_CALLS(RR_FIND)
#undef RR_FIND
    cuda_calls_.query_cuda_support = module_.template function<int()>("MPIX_Query_cuda_support");
    cuda_calls_.gpu_query_support = module_.template function<int(int, int*)>("MPIX_GPU_query_support");
    if (missing.empty()) return;
    throw UnavailableError("MPI: the library behind " + module_.path() + " lacks" + missing +
                           "; ringreduce needs MPI 3 (Open MPI 1.8, MPICH 3.0 or newer)");
  }

  const char* abi() const override { return Abi::kName; }

  MpiHandle handle(MpiKind kind, uintptr_t value) const override {
    switch (kind) {
      case MpiKind::kComm:
        return made<Comm>(value);
      case MpiKind::kDatatype:
        return made<typename Abi::Datatype>(value);
      case MpiKind::kErrhandler:
        break;
    }
    return made<typename Abi::Errhandler>(value);
  }

  int initialized(bool& yes) override { return flag(Initialized_, yes); }
  int finalized(bool& yes) override { return flag(Finalized_, yes); }

  int query_thread(MpiThreads& threads) override {
    int provided = 0;
    const int code = Query_thread_(&provided);
    for (size_t level = 0; level < std::size(Abi::kThreads); ++level) {
      if (provided >= Abi::kThreads[level]) threads = static_cast<MpiThreads>(level);
    }
    return code;
  }

  int comm_rank(MpiHandle comm, int& rank) override { return Comm_rank_(as<Comm>(comm), &rank); }
  int comm_size(MpiHandle comm, int& size) override { return Comm_size_(as<Comm>(comm), &size); }

  int comm_set_errhandler(MpiHandle comm, MpiHandle errhandler) override {
    return Comm_set_errhandler_(as<Comm>(comm), as<typename Abi::Errhandler>(errhandler));
  }

  int comm_idup(MpiHandle comm, MpiHandle& duplicate, MpiHandle& request) override {
    return Comm_idup_(as<Comm>(comm), &fresh<Comm>(duplicate), &fresh<Request>(request));
  }

  int comm_free(MpiHandle& comm) override { return Comm_free_(&as<Comm>(comm)); }

  int ialltoall(const void* src, int nbytes, void* dst, MpiHandle byte, MpiHandle comm, MpiHandle& request) override {
    const auto datatype = as<typename Abi::Datatype>(byte);
    return Ialltoall_(src, nbytes, datatype, dst, nbytes, datatype, as<Comm>(comm), &fresh<Request>(request));
  }

  int isend(const void* buffer, MpiHandle datatype, MpiEnvelope to, MpiHandle comm, MpiHandle& request) override {
    return Isend_(buffer, to.count, as<typename Abi::Datatype>(datatype), to.peer, to.tag, as<Comm>(comm),
                  &fresh<Request>(request));
  }

  int issend(const void* buffer, MpiHandle datatype, MpiEnvelope to, MpiHandle comm, MpiHandle& request) override {
    return Issend_(buffer, to.count, as<typename Abi::Datatype>(datatype), to.peer, to.tag, as<Comm>(comm),
                   &fresh<Request>(request));
  }

  int irecv(void* buffer, MpiHandle datatype, MpiEnvelope from, MpiHandle comm, MpiHandle& request) override {
    return Irecv_(buffer, from.count, as<typename Abi::Datatype>(datatype), from.peer, from.tag, as<Comm>(comm),
                  &fresh<Request>(request));
  }

  int test(MpiHandle& request, bool& done) override {
    int flag = 0;
    MpiStatus status;
    const int code = Test_(&as<Request>(request), &flag, &status);
    done = flag != 0;
    return code;
  }

  int test_some(const std::vector<MpiHandle>& requests, std::vector<MpiDone>& done) override {
    some_.clear();
    for (MpiHandle request : requests) some_.push_back(as<Request>(request));
    indices_.resize(some_.size());
    statuses_.resize(some_.size());
    int count = 0;
    const int code = Testsome_(static_cast<int>(some_.size()), some_.data(), &count, indices_.data(), statuses_.data());
    for (int i = 0; i < count; ++i) {  // MPI_UNDEFINED is negative
      const std::byte* const status = status_of(static_cast<size_t>(i));
      int error = 0;  // set only if the call has failed
      if (code != 0) std::memcpy(&error, status + Abi::kStatusError, sizeof error);
      int is_cancelled = 0;
      if (error == 0) error = Test_cancelled_(status, &is_cancelled);
      done.push_back({static_cast<size_t>(indices_[static_cast<size_t>(i)]), error, is_cancelled != 0});
    }
    return code;
  }

  int cancel(MpiHandle& request) override { return Cancel_(&as<Request>(request)); }

  MpiCudaCalls cuda_calls() const override { return cuda_calls_; }

  std::string version() const override {
    auto text = std::make_unique<std::array<char, kVersionTextNbytes>>();
    int length = 0;
    if (Get_library_version_(text->data(), &length) != 0) return Abi::kName;
    const std::string all(text->data(), std::min(text->size(), static_cast<size_t>(std::max(length, 0))));
    std::string words;  // up to the first comma or line end, with single blanks
    for (const char c : all.substr(0, all.find_first_of(",\n"))) {
      const bool blank = c == ' ' || c == '\t';
      if (!blank) {
        words += c;
      } else if (!words.empty() && words.back() != ' ') {
        words += ' ';
      }
    }
    return words;
  }

  std::string error_string(int code) override {
    char text[kErrorTextNbytes] = {};
    int length = 0;
    if (Error_string_(code, text, &length) != 0) return "error code " + std::to_string(code);
    return std::string(text, std::min(static_cast<size_t>(std::max(length, 0)), sizeof text));
  }

  bool is_process_failure(int code) override {
    int kind = 0;
    if (Error_class_(code, &kind) != 0) return false;
    return std::find(std::begin(Abi::kProcessFailures), std::end(Abi::kProcessFailures), kind) !=
           std::end(Abi::kProcessFailures);
  }

 private:
  using Comm = typename Abi::Comm;
  using Request = typename Abi::Request;

  template <class Handle>
  static Handle& fresh(MpiHandle& handle) {
    static_assert(sizeof(Handle) <= sizeof handle.object && std::is_trivially_copyable_v<Handle>);
    return *new (handle.object) Handle();
  }

  template <class Handle>
  static Handle& as(MpiHandle& handle) {
    return *std::launder(reinterpret_cast<Handle*>(handle.object));
  }

  template <class Handle>
  static MpiHandle made(uintptr_t value) {
    MpiHandle handle;
    if constexpr (std::is_pointer_v<Handle>) {
      fresh<Handle>(handle) = reinterpret_cast<Handle>(value);
    } else {
      fresh<Handle>(handle) = static_cast<Handle>(value);
    }
    return handle;
  }

  const std::byte* status_of(size_t index) const {
    return reinterpret_cast<const std::byte*>(statuses_.data()) + index * Abi::kStatusNbytes;
  }

  static int flag(int (*call)(int*), bool& yes) {
    int flag = 0;
    const int code = call(&flag);
    yes = flag != 0;
    return code;
  }

  MpiModule module_;
  // Of test_some, which goes on for as long as messages are under way.
  std::vector<Request> some_;
  std::vector<int> indices_;
  std::vector<MpiStatus> statuses_;
#define RR_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name##_ = nullptr;
  RR_MPI_CALLS(RR_MEMBER)
#undef RR_MEMBER
  MpiCudaCalls cuda_calls_;
};

// The major version of the standard ABI that the library has, if it is built for it. MPICH 5 answers -1 in
// libmpi.so.12.
int abi_version(const MpiModule& module) {
  auto* get_version = module.function<int(int*, int*)>("MPI_Abi_get_version");
  int major = -1;
  int minor = -1;
  if (get_version == nullptr || get_version(&major, &minor) != 0) return -1;
  return major;
}

}  // namespace

const char* name(MpiThreads threads) {
  switch (threads) {
    case MpiThreads::kSingle:
      return "MPI_THREAD_SINGLE";
    case MpiThreads::kFunneled:
      return "MPI_THREAD_FUNNELED";
    case MpiThreads::kSerialized:
      return "MPI_THREAD_SERIALIZED";
    case MpiThreads::kMultiple:
      break;
  }
  return "MPI_THREAD_MULTIPLE";
}

std::shared_ptr<MpiLibrary> MpiLibrary::open(const std::string& path, size_t handle_size) {
  MpiModule module(path);
  const bool is_standard = abi_version(module) > 0;
  if (is_standard && handle_size == sizeof(void*)) return std::make_shared<Library<StandardAbi>>(std::move(module));
  const bool is_openmpi = module.find("ompi_mpi_comm_self") != nullptr;
  if (is_openmpi && handle_size == sizeof(void*)) return std::make_shared<Library<OpenMpiAbi>>(std::move(module));
  if (!is_standard && !is_openmpi && handle_size == sizeof(int)) {
    return std::make_shared<Library<MpichAbi>>(std::move(module));
  }
  const char* kind = is_standard  ? "the ABI of MPI 5"
                     : is_openmpi ? "Open MPI"
                                  : "neither Open MPI nor the ABI of MPI 5";
  throw UnavailableError("MPI: handles of " + std::to_string(handle_size) + " bytes, but the library behind " + path +
                         " is " + kind +
                         "; ringreduce knows Open MPI, the MPICH family and the ABI of MPI 5. Are two MPIs loaded?");
}

}  // namespace rr
