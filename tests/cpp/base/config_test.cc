// The environment of a job: which values of a variable are taken, and what a bad one raises.
#include "base/config.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "doctest/doctest.h"

namespace rr {
namespace {

// A variable for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::string refusal() {
  try {
    Settings::from_environment();
  } catch (const InvalidArgumentError& error) {
    return error.what();
  }
  return "";
}

// What a knob was given, and where it comes from.
KnobValue value_of(const char* name) {
  const Settings settings = Settings::from_environment();
  const auto at = std::find_if(settings.values.begin(), settings.values.end(),
                               [&](const KnobValue& value) { return value.name == name; });
  REQUIRE(at != settings.values.end());
  return *at;
}

bool is_counted(const Knob& knob) {
  return std::string_view(knob.unit) == "bytes" || std::string_view(knob.unit) == "names";
}

TEST_CASE("numbers: a part of a byte or of a name is refused, and a whole number is taken however it is written") {
  int counted = 0;
  for (const Knob& knob : knobs()) {
    CAPTURE(knob.name);
    if (std::string_view(knob.range).find("..") == std::string_view::npos) continue;
    const double high = std::stod(std::string(knob.range).substr(std::string_view(knob.range).find("..") + 2));
    const std::string most = std::to_string(static_cast<int64_t>(high));
    {
      const Variable whole(knob.name, most + ".0");
      CHECK(refusal() == "");
    }
    const Variable part(knob.name, std::to_string(static_cast<int64_t>(high) - 1) + ".5");
    CHECK((refusal() != "") == is_counted(knob));
    counted += is_counted(knob) ? 1 : 0;
  }
  CHECK(counted >= 3);
}

TEST_CASE("Horovod's switch of the warnings takes numbers, as there, and counts for nothing where ours is set") {
  constexpr const char* kSwitch = "HOROVOD_STALL_CHECK_DISABLE";
  for (const std::string word : {"true", "1x", "yes"}) {
    const Variable variable(kSwitch, word);
    CHECK(refusal() == std::string(kSwitch) + "=" + word + ": expected a number; above 0 switches the warnings off");
    const Variable ours("RINGREDUCE_STALL_WARNING", "5");
    CHECK(refusal() == "");
  }
  for (const std::string on : {"0", "", "-1"}) {
    const Variable variable(kSwitch, on);
    CHECK(value_of("RINGREDUCE_STALL_WARNING").origin == "default");
  }
  for (const std::string off : {"1", "2"}) {
    const Variable variable(kSwitch, off);
    CHECK(value_of("RINGREDUCE_STALL_WARNING").origin == kSwitch);
    CHECK(value_of("RINGREDUCE_STALL_WARNING").value == "0");
  }
}

TEST_CASE("numbers: the ends of the range are taken, what lies beyond and what is no number is refused by name") {
  int numbers = 0;
  for (const Knob& knob : knobs()) {
    const std::string range = knob.range;
    const size_t dots = range.find("..");
    if (dots == std::string::npos) continue;
    ++numbers;
    CAPTURE(knob.name);
    const std::string low = range.substr(0, dots);
    const std::string high = range.substr(dots + 2);
    for (const std::string& taken : {low, high}) {
      const Variable variable(knob.name, taken);
      CHECK(refusal() == "");
    }
    for (const std::string& refused : {std::to_string(std::stod(low) - 1), std::to_string(std::stod(high) * 2),
                                       high + "x", std::string(), std::string("nan"), std::string("three")}) {
      const Variable variable(knob.name, refused);
      const std::string expected = is_counted(knob) ? "a whole number in " : "a number in ";
      CHECK(refusal().find(std::string(knob.name) + "=" + refused + ": expected " + expected + range) == 0);
    }
  }
  CHECK(numbers >= 5);
}

TEST_CASE("choices: each name is taken in any case, another is refused with the names that there are") {
  for (const Knob& knob : knobs()) {
    const std::string range = knob.range;
    if (range.empty() || range.find("..") != std::string::npos) continue;
    CAPTURE(knob.name);
    for (size_t begin = 0; begin < range.size();) {
      const size_t end = std::min(range.find('|', begin), range.size());
      std::string word = range.substr(begin, end - begin);
      word[0] = static_cast<char>(word[0] >= 'a' && word[0] <= 'z' ? word[0] - 'a' + 'A' : word[0]);
      const Variable variable(knob.name, word);
      CHECK(refusal() == "");
      begin = end + 1;
    }
    const Variable variable(knob.name, "other");
    CHECK(refusal() == std::string(knob.name) + "=other: expected one of " + range);
  }
}

TEST_CASE("Horovod's name of a variable counts where ours is not set, and is the one that an error names") {
  for (const Knob& knob : knobs()) {
    if (std::strlen(knob.alias) == 0 || std::string(knob.range).find("..") == std::string::npos) continue;
    CAPTURE(knob.name);
    CHECK(value_of(knob.name).origin == "default");
    CHECK(value_of(knob.name).value == knob.fallback);
    const Variable theirs(knob.alias, "17");
    CHECK(value_of(knob.name).origin == knob.alias);
    CHECK(value_of(knob.name).value == "17");
    {
      const Variable ours(knob.name, "18");
      CHECK(value_of(knob.name).origin == knob.name);
      CHECK(value_of(knob.name).value == "18");
    }
    const Variable bad(knob.alias, "many");
    CHECK(refusal().find(std::string(knob.alias) + "=many: ") == 0);
  }
}

TEST_CASE("Horovod's size of a cache, which may be none, leaves as many names in flight as the default") {
  for (const auto& [given, taken] : {std::pair{"0", 4096.0}, {"100", 4096.0}, {"5000", 5000.0}, {"1e9", 1048576.0}}) {
    const Variable theirs("HOROVOD_CACHE_CAPACITY", given);
    CHECK(static_cast<double>(Settings::from_environment().cache_capacity) == taken);
  }
  const Variable theirs("HOROVOD_CACHE_CAPACITY", "-1");
  CHECK(refusal().find("HOROVOD_CACHE_CAPACITY=-1: expected a whole number in 16..1048576") == 0);
}

TEST_CASE("what the core uses is what the variables say") {
  const Variable timeout("RINGREDUCE_TIMEOUT", "2.5");
  const Variable threshold("HOROVOD_FUSION_THRESHOLD", "4096");
  const Variable algorithm("RINGREDUCE_ALGORITHM", "Ring");
  const Settings settings = Settings::from_environment();
  CHECK(settings.timeout_s == 2.5);
  CHECK(settings.fusion_threshold == 4096);
  CHECK(settings.algorithm == "ring");
  CHECK(settings.stall_warning_s == 5);
  CHECK_FALSE(settings.is_stall_warning_given);
}

TEST_CASE("Horovod's switch for warnings is read where ours is unset, and shown as what it is") {
  const Variable off("HOROVOD_STALL_CHECK_DISABLE", "1");
  const auto shown = [](const Settings& settings) {
    for (const KnobValue& value : settings.values) {
      if (value.name == "RINGREDUCE_STALL_WARNING") return value.value + " of " + value.origin;
    }
    return std::string("nothing");
  };
  CHECK(Settings::from_environment().stall_warning_s == 0);
  CHECK(shown(Settings::from_environment()) == "0 of HOROVOD_STALL_CHECK_DISABLE");
  const Variable ours("RINGREDUCE_STALL_WARNING", "30");
  CHECK(Settings::from_environment().stall_warning_s == 30);
  CHECK(shown(Settings::from_environment()) == "30 of RINGREDUCE_STALL_WARNING");
}

}  // namespace
}  // namespace rr
