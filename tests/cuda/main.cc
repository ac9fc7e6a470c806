// rr_gpu: the kernels on a GPU, without Python, ranks or streams of a framework.
//
//   rr_gpu check [few]                     every kernel against the CPU's; few: for compute-sanitizer
//   rr_gpu bench [MiB] [NAME=COUNT,...]... speeds; lists of tensors by their numbers of float32 elements
//   rr_gpu probe [NAME]                    one question to the driver; without a name, which there are
//
// RINGREDUCE_CUDA_LIBRARY names the driver, as everywhere. Exit status: 0 right, 1 wrong, 2 no GPU or a bad argument.

#include <cstdio>
#include <cstring>
#include <sstream>

#include "bench_gpu.h"
#include "probe.h"

namespace {

rr::TensorList list_from(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) throw rr::InvalidArgumentError("rr_gpu bench: NAME=COUNT,... and not " + text);
  rr::TensorList list = {text.substr(0, equals), {}};
  std::istringstream numbers(text.substr(equals + 1));
  for (std::string number; std::getline(numbers, number, ',');) list.counts.push_back(std::stoull(number));
  return list;
}

int run(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "probe") return rr::probe(argc > 2 ? argv[2] : "");
  if (verb == "peer-small") return rr::probe_small_peer({argv + 2, argv + argc});
  if (verb == "peer-stale") return rr::probe_stale_peer();
  if (verb == "peer-event") return rr::probe_peer_event();
  const std::shared_ptr<rr::Device> device = rr::cuda_device(0);
  if (verb == "check") return rr::check_kernels(*device, argc > 2 && std::strcmp(argv[2], "few") == 0) == 0 ? 0 : 1;
  if (verb != "bench")
    throw rr::InvalidArgumentError("rr_gpu check [few] | bench [MiB] [NAME=COUNT,...]... | probe [NAME]");
  std::vector<rr::TensorList> lists;
  for (int i = 3; i < argc; ++i) lists.push_back(list_from(argv[i]));
  const size_t mib = argc > 2 ? std::stoull(argv[2]) : 1024;
  return rr::bench_kernels(*device, lists, mib << 20);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rr_gpu: %s\n", error.what());
    return 2;
  }
}
