// Finds a kernel set by instruction set or by name.
#include "data/kernels/isa.h"

#include <string>

#include "base/errors.h"

namespace rr {
namespace {

struct Named {
  Isa isa;
  const char* name;
};

constexpr Named kBestFirst[] = {
    {Isa::kAvx512, "avx512"},
    {Isa::kAvx2, "avx2"},
    {Isa::kX86_64_v2, "x86-64-v2"},
    {Isa::kPortable, "portable"},
};

const Kernels* find(Isa isa) { return isa == Isa::kPortable ? &kPortableKernels : x86_kernels(isa); }

std::string available_names() {
  std::string text;
  for (Isa isa : available_isas()) text += (text.empty() ? "" : ", ") + std::string(find(isa)->name);
  return text;
}

}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Named& entry : kBestFirst) {
    if (find(entry.isa)) isas.push_back(entry.isa);
  }
  return isas;
}

const Kernels& kernels(Isa isa) {
  if (const Kernels* found = find(isa)) return *found;
  std::string wanted = "of this number";
  for (const Named& entry : kBestFirst) {
    if (entry.isa == isa) wanted = entry.name;
  }
  throw UnavailableError("the kernels " + wanted + " cannot run on this machine; available here: " + available_names());
}

const Kernels& kernels(std::string_view name) {
  if (name == "auto") return kernels(available_isas().front());
  std::string known = "auto";
  for (const Named& entry : kBestFirst) {
    if (name == entry.name) return kernels(entry.isa);
    known += std::string(", ") + entry.name;
  }
  throw InvalidArgumentError("there are no kernels named \"" + std::string(name) + "\"; the names are " + known);
}

}  // namespace rr
