#include "base/config.h"

#include <locale.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "base/errors.h"

namespace rr {

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> table = {
      {"RINGREDUCE_TIMEOUT", "s", "0..1e9", "1800", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
       "an operation that takes longer fails its group with TimeoutError; time in which this process was suspended "
       "does not count; 0 = never"},
      {"RINGREDUCE_STALL_WARNING", "s", "0..1e9", "5", "HOROVOD_STALL_CHECK_TIME_SECONDS",
       "one warning says which ranks an operation waits for, and where they stand, once it waits so long; where it is "
       "not set, later for what usually takes long (docs/user/slow.md); 0 = off"},
      {"RINGREDUCE_LATE_WARNING", "%", "0..100", "10", "",
       "a warning, once a minute at most, names a rank for which the others wait so much of the time, and what it does "
       "meanwhile; likewise a link between hosts that holds up the others; 0 = off"},
      {"RINGREDUCE_FAILURE_REPORTS", "path", "", "", "",
       "a folder where each rank of a job that has failed leaves a report in JSON; empty: none"},
      {"RINGREDUCE_VERDICT", "s", "0..1e9", "120", "",
       "where every rank has a thread that waits and no rank has called an operation for so long, all raise "
       "MismatchError; 0 = never"},
      {"RINGREDUCE_INIT_TIMEOUT", "s", "0.1..1e6", "60", "HOROVOD_START_TIMEOUT",
       "how long init() waits for the other ranks"},
      {"RINGREDUCE_SPIN_US", "us", "0..1e6", "50", "",
       "how long a blocked call polls before it sleeps (0: not at all); at most 8 yields when ranks share cores, and "
       "between hosts 16 yields at least, unless one has lost the core for 0.5 ms within 0.1 s"},
      {"RINGREDUCE_FUSION_THRESHOLD", "bytes", "0..1e12", "134217728", "HOROVOD_FUSION_THRESHOLD",
       "asynchronous all-reduces are fused into buckets of at most this size; 0 = no fusion. Where it is set, the "
       "gradients of torch's DistributedOptimizer too (else 32 MiB); the same on all ranks"},
      {"RINGREDUCE_FUSION_LINGER_US", "us", "0..1e6", "1000", "",
       "how long an open bucket waits for more tensors while no rank waits for one of its members"},
      {"RINGREDUCE_CACHE_CAPACITY", "names", "16..1048576", "4096", "HOROVOD_CACHE_CAPACITY",
       "tensor names that a group remembers at once; the least recently added idle name makes room"},
      {"RINGREDUCE_ALGORITHM", "name", "auto|two_shot|direct|ring|recursive_doubling|tree", "auto", "",
       "forces the algorithm where it applies; what cannot use it takes auto; the same on all hosts"},
      {"RINGREDUCE_CHUNK", "bytes", "0..1048576", "0", "",
       "pipelining unit of staged transfers; less than 4096, or than 64 for each rank, counts as that; 0 = calibrated, "
       "and 1048576 for memory of GPUs"},
      {"RINGREDUCE_PLAN", "path", "", "", "",
       "a plan file of `ringreduce tune`: sizes measured for a job of these ranks on these hosts; the same file on all "
       "ranks. Empty: measured at the first init() of its kind"},
      {"RINGREDUCE_STAGING", "name", "auto|cached|streamed", "auto", "",
       "how staged data is written: through the caches or past them; auto measures which is faster now"},
      {"RINGREDUCE_ISA", "name", "auto|portable|x86-64-v2|avx2|avx512", "auto", "", "CPU kernel set"},
      {"RINGREDUCE_TRANSPORT", "name", "auto|shm|shm+tcp|tcp|mpi", "auto", "",
       "how ranks are linked; auto: shared memory within a host, between hosts TCP where there is an address or no MPI "
       "has started them, else MPI; shm+tcp: between hosts TCP in any case; tcp, mpi: that everywhere, as if each rank "
       "were a host"},
      {"RINGREDUCE_ADDRESS", "host:port", "", "", "",
       "where rank 0 listens for the ranks of other hosts, which then are connected by TCP; the same on all ranks; "
       ":port: at an address of its own choice"},
      {"RINGREDUCE_NETWORK_INTERFACE", "names", "", "", "HOROVOD_GLOO_IFACE",
       "by which interfaces of its host, as eth0 or eth0,ib0, other hosts may reach rank 0, where no address is given; "
       "default: NCCL_SOCKET_IFNAME in NCCL's way of writing, else any"},
      {"RINGREDUCE_PORTS", "first-last", "", "", "",
       "at which ports ranks listen for ranks of other hosts, as 29400-29499; default: any that is free"},
      {"RINGREDUCE_SECRET_FILE", "path", "", "", "",
       "a file with at least 16 random bytes that only the job's user can read, the same on all hosts; for TCP where "
       "the launcher has no way to hand over a secret"},
      {"RINGREDUCE_ENCRYPT", "name", "auto|on|off", "auto", "",
       "whether tensors are encrypted between hosts over TCP, as control always is; auto: where they leave for an "
       "address that is not private; off: they bear a checksum; the same on all hosts"},
      {"RINGREDUCE_MPI_CUDA", "name", "auto|on|off", "auto", "",
       "whether MPI is given pointers to GPU memory; auto: if it says that it takes them; off: staged in host memory"},
      {"RINGREDUCE_GPU_PATH", "name", "auto|ipc|nccl|mpi|staged", "auto", "",
       "how tensors on GPUs travel between ranks; one that the ranks cannot all take is an error that says why; the "
       "same on all hosts"},
      {"RINGREDUCE_NCCL_LIBRARY", "path", "", "", "",
       "the NCCL to use; default: the one that is loaded (torch's), a wheel's (nvidia-nccl-cu13), the system's"},
      {"RINGREDUCE_CUDA_LIBRARY", "path", "", "libcuda.so.1", "",
       "the CUDA driver: a file name that the loader finds, or a path"},
      {"RINGREDUCE_LOG_LEVEL", "name", "trace|debug|info|warning|error|fatal", "warning", "HOROVOD_LOG_LEVEL",
       "least level that is logged to stderr; nothing is at trace and debug, and little at info"},
      {"RINGREDUCE_TIMELINE", "path", "", "", "HOROVOD_TIMELINE",
       "the folder for this job's timeline, a file of each rank; NAME.json: also a trace in Horovod's form, from "
       "records "
       "in NAME.json.ranks. HOROVOD_TIMELINE: always such a trace, and DYNAMIC: start_timeline() begins it"},
      {"RINGREDUCE_TIMELINE_MARK_CYCLES", "flag", "0|1", "0", "HOROVOD_TIMELINE_MARK_CYCLES",
       "whether a trace in Horovod's form shows CYCLE_START where the execution of a bucket begins"},
      {"RINGREDUCE_RENDEZVOUS", "name:secret", "", "", "",
       "set by ringrun: abstract socket name and secret of the job"},
      {"RINGREDUCE_RANK", "rank", "", "", "HOROVOD_RANK", "set by ringrun"},
      {"RINGREDUCE_SIZE", "ranks", "", "", "HOROVOD_SIZE", "set by ringrun"},
      {"RINGREDUCE_LOCAL_RANK", "rank", "", "", "HOROVOD_LOCAL_RANK", "set by ringrun"},
      {"RINGREDUCE_LOCAL_SIZE", "ranks", "", "", "HOROVOD_LOCAL_SIZE", "set by ringrun"},
      {"RINGREDUCE_CROSS_RANK", "rank", "", "", "HOROVOD_CROSS_RANK", "set by ringrun"},
      {"RINGREDUCE_CROSS_SIZE", "ranks", "", "", "HOROVOD_CROSS_SIZE", "set by ringrun"},
      {"RINGREDUCE_DYNAMIC_PROCESS_SETS", "flag", "0|1", "1", "HOROVOD_DYNAMIC_PROCESS_SETS",
       "whether process sets may be added after init()"},
      {"RINGREDUCE_CHECK_PARAMETERS", "name", "error|warn|broadcast|off", "warn", "",
       "what DistributedOptimizer does where ranks start from other parameters or state; broadcast: the "
       "lowest rank's"},
      {"RINGREDUCE_AS_HOROVOD", "name", "0|1|force", "0", "",
       "1: `import horovod` finds ringreduce, in programs and their children; force: also where Horovod is installed"},
      {"RINGREDUCE_DATA", "path", "", "", "", "folder with the Fashion-MNIST files, for the examples"},
      {"RINGREDUCE_CACHE", "path", "", "", "",
       "folder for calibration results; default: ringreduce in the user's cache"},
  };
  return table;
}

namespace {

bool matches_choice(const std::string& range, const std::string& value) {
  size_t begin = 0;
  while (begin <= range.size()) {
    const size_t end = range.find('|', begin);
    if (range.substr(begin, end - begin) == value) return true;
    if (end == std::string::npos) return false;
    begin = end + 1;
  }
  return false;
}

std::string lower(std::string text) {
  for (char& c : text) c = (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// strtod() in the C locale: a program may have set one that writes 2,5.
double to_number(const char* text, char** end = nullptr) {
  static const locale_t c_locale = ::newlocale(LC_NUMERIC_MASK, "C", nullptr);
  return ::strtod_l(text, end, c_locale);
}

double parse_number(const Knob& knob, const KnobValue& given) {
  const std::string range = knob.range;
  const double low = to_number(range.c_str());
  const double high = to_number(range.c_str() + range.find("..") + 2);
  char* end = nullptr;
  double value = to_number(given.value.c_str(), &end);
  // Horovod's number, which may be 0, is of what is remembered. Ours is of what is in flight too, where fewer names
  // than by default could stop a script that runs there.
  if (given.origin == "HOROVOD_CACHE_CAPACITY" && *end == '\0' && value >= 0)
    value = std::clamp(value, to_number(knob.fallback), high);
  const std::string unit = knob.unit;
  const bool is_whole = unit == "bytes" || unit == "names";
  if (given.value.empty() || *end != '\0' || !(value >= low && value <= high) ||
      (is_whole && value != std::floor(value)))
    throw InvalidArgumentError(given.origin + "=" + given.value + ": expected a " + (is_whole ? "whole " : "") +
                               "number in " + range + " (" + unit + "), " + knob.meaning);
  return value;
}

KnobValue read(const Knob& knob) {
  if (const char* text = std::getenv(knob.name)) return {knob.name, text, knob.name};
  // This switch of Horovod's has the opposite sense, so it is no alias in the table.
  constexpr const char* kOff = "HOROVOD_STALL_CHECK_DISABLE";
  if (std::string_view(knob.name) == "RINGREDUCE_STALL_WARNING") {
    const char* const text = std::getenv(kOff);
    char* end = nullptr;
    const double number = text == nullptr ? 0.0 : to_number(text, &end);  // "" is 0, as there
    if (end != nullptr && *end != '\0')
      throw InvalidArgumentError(std::string(kOff) + "=" + text +
                                 ": expected a number; above 0 switches the warnings off");
    if (number > 0) return {knob.name, "0", kOff};
  }
  if (knob.alias[0] != '\0') {
    if (const char* text = std::getenv(knob.alias)) return {knob.name, text, knob.alias};
  }
  return {knob.name, knob.fallback, "default"};
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  std::map<std::string_view, double> numbers;
  std::map<std::string_view, std::string> words;
  std::map<std::string_view, std::string> texts;
  for (const Knob& knob : knobs()) {
    KnobValue given = read(knob);
    const std::string range = knob.range;
    if (range.find("..") != std::string::npos) {
      numbers[knob.name] = parse_number(knob, given);
    } else if (!range.empty()) {
      const std::string word = lower(given.value);
      if (!matches_choice(range, word)) {
        throw InvalidArgumentError(given.origin + "=" + given.value + ": expected one of " + range);
      }
      words[knob.name] = word;
    } else {
      texts[knob.name] = given.value;
    }
    settings.values.push_back(std::move(given));
  }
  settings.timeout_s = numbers["RINGREDUCE_TIMEOUT"];
  settings.init_timeout_s = numbers["RINGREDUCE_INIT_TIMEOUT"];
  settings.stall_warning_s = numbers["RINGREDUCE_STALL_WARNING"];
  for (const KnobValue& value : settings.values) {
    if (value.name == "RINGREDUCE_STALL_WARNING") settings.is_stall_warning_given = value.origin != "default";
  }
  settings.late_warning_percent = numbers["RINGREDUCE_LATE_WARNING"];
  settings.verdict_s = numbers["RINGREDUCE_VERDICT"];
  settings.spin_us = numbers["RINGREDUCE_SPIN_US"];
  settings.fusion_threshold = static_cast<size_t>(numbers["RINGREDUCE_FUSION_THRESHOLD"]);
  settings.fusion_linger_us = numbers["RINGREDUCE_FUSION_LINGER_US"];
  settings.cache_capacity = static_cast<size_t>(numbers["RINGREDUCE_CACHE_CAPACITY"]);
  settings.chunk_nbytes = static_cast<size_t>(numbers["RINGREDUCE_CHUNK"]);
  settings.algorithm = words["RINGREDUCE_ALGORITHM"];
  settings.staging = words["RINGREDUCE_STAGING"];
  settings.isa = words["RINGREDUCE_ISA"];
  settings.transport = words["RINGREDUCE_TRANSPORT"];
  settings.mpi_cuda = words["RINGREDUCE_MPI_CUDA"];
  settings.gpu_path = words["RINGREDUCE_GPU_PATH"];
  settings.nccl_library = texts["RINGREDUCE_NCCL_LIBRARY"];
  settings.cuda_library = texts["RINGREDUCE_CUDA_LIBRARY"];
  settings.log_level = log_level_from(words["RINGREDUCE_LOG_LEVEL"]);
  return settings;
}

}  // namespace rr
